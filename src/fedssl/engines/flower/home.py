"""Flower's commands, kept to a folder of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedssl.errors import RunError
from fedssl.storage import write_toml

CONNECTION = "fedssl"  # what the SuperLink is called in Flower's own config


class Home:
    """A folder that Flower's processes take for theirs, and the environment that tells them so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        programs = str(Path(sys.executable).parent)  # Flower starts its own programs by name
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join((programs, os.environ.get("PATH", ""))),
            "FLWR_HOME": str(self.folder),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        }

    def connect(self, address: str, authority: Path | None) -> None:
        """Tell Flower's command line where the SuperLink is."""
        trust: dict[str, Any] = (
            {"insecure": True} if authority is None else {"root-certificates": str(authority.resolve())}
        )
        connection = {"address": address, **trust}
        write_toml(
            self.folder / "config.toml", {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        )

    def start(self, kind: str, *words: str, log: Path | None = None) -> subprocess.Popen[bytes]:
        """A SuperLink or a SuperNode that ends when this process does."""
        command = [sys.executable, "-m", "fedssl.engines.flower.process", str(os.getpid()), kind, *words]
        if log is None:
            return subprocess.Popen(command, env=self.environment)
        with open(log, "ab") as output:
            return subprocess.Popen(command, env=self.environment, stdout=output, stderr=output)

    def follow(self, *words: str) -> subprocess.Popen[str]:
        """A command of Flower's whose lines are read while it runs."""
        return subprocess.Popen(
            ["flwr", *words],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ask(self, *words: str) -> dict[str, Any]:
        """What a command of Flower's answers."""
        done = subprocess.run(
            ["flwr", *words, "--format", "json"], env=self.environment, capture_output=True, text=True
        )
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            answer = {}
        if done.returncode or not answer.get("success", False):
            said = answer.get("error-message") or done.stderr or done.stdout
            raise RunError(f"`flwr {' '.join(words)}` failed: {' '.join(str(said).split())[:500]}")
        return answer
