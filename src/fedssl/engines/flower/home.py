"""Runs Flower's commands with a separate configuration folder."""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedssl.engines.flower.journal import VARIABLE
from fedssl.errors import RunError
from fedssl.storage import private_folder, write_private, write_toml

CONNECTION = "fedssl"  # the name of the SuperLink in Flower's config
SECRET, TOKEN = "superexec.secret", "control.token"  # files that only the user can read


class Home:
    """A folder for Flower's processes, and the environment variables that point to it.

    It contains two secrets, renewed at every start: one authenticates the process that starts apps, the other
    is the token that the SuperLink requires for runs and keys. Only the user can read the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = private_folder(folder.resolve())
        self._token = secrets.token_hex(32)
        write_private(self.folder / TOKEN, self._token)
        write_private(self.folder / SECRET, secrets.token_hex(32))
        programs = str(Path(sys.executable).parent)  # Flower starts its own programs by name
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join((programs, os.environ.get("PATH", ""))),
            "FLWR_HOME": str(self.folder),
            VARIABLE: "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        }

    def connect(self, address: str, authority: Path | None) -> None:
        """Configure the address of the SuperLink for Flower's command line."""
        trust: dict[str, Any] = (
            {"insecure": True} if authority is None else {"root-certificates": str(authority.resolve())}
        )
        connection = {"address": address, **trust}
        write_toml(
            self.folder / "config.toml", {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        )
        account = {"authn-type": "oidc", "oidc-access-token": self._token, "oidc-refresh-token": "none"}
        stored = {
            f"flower.account-auth.{address}.{key}": base64.b64encode(value.encode()).decode()
            for key, value in account.items()
        }
        write_private(self.folder / "credentials.yaml", json.dumps(stored))

    def start(self, kind: str, *words: str, log: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a SuperLink or a SuperNode that ends with this process."""
        from fedssl.engines.flower import process

        if log is None:
            return process.start(kind, words, self.environment)
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
            return process.start(kind, words, self.environment, output)

    def follow(self, *words: str) -> subprocess.Popen[str]:
        """Start one of Flower's commands, to read its output while it runs."""
        return subprocess.Popen(
            ["flwr", *words],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ask(self, *words: str) -> dict[str, Any]:
        """Run one of Flower's commands; returns its output."""
        done = subprocess.run(
            ["flwr", *words, "--format", "json"], env=self.environment, capture_output=True, text=True
        )
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            answer = {}
        if done.returncode or not answer.get("success", False):
            problem = answer.get("error-message") or done.stderr or done.stdout
            raise RunError(f"`flwr {' '.join(words)}` failed: {' '.join(str(problem).split())[:500]}")
        return answer
