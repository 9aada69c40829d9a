"""Flower's processes with secure settings; each ends with its parent.

    python -m fedssl.engines.flower.process PARENT superlink MAX_BYTES …    behind the gate, see `gate`
    python -m fedssl.engines.flower.process PARENT supernode …
    python -m fedssl.engines.flower.process PARENT superexec …
    python -m fedssl.engines.flower.process PARENT serverapp|clientapp …    the token comes on standard input

The remaining arguments are those of Flower's command of that name. `$FLWR_HOME` contains the secrets that
these processes share (`home.Home`).
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from flwr.supercore.app_utils import start_parent_process_monitor

from fedssl.engines.flower.home import SECRET, TOKEN


def superlink() -> None:
    """Run the server: Flower's port behind the gate."""
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    from fedssl.engines.audit_log import AuditLog
    from fedssl.engines.flower.gate import Gate

    max_bytes, token = int(sys.argv.pop(1)), (_home() / TOKEN).read_text()
    others = extensions.get_middleware
    gate = Middleware(Gate, max_bytes=max_bytes, token=token, audit=AuditLog(_home().parent))
    extensions.get_middleware = lambda: (gate, *others())
    trust = (
        ["--insecure"] if "--insecure" in sys.argv else ["--root-certificates", _value("--ssl-ca-certfile")]
    )
    _run_tasks_apart(f"127.0.0.1:{_value('--port')}", trust)
    flower_superlink()


def supernode() -> None:
    """Run a site's connection to the server; its local port only accepts processes of this user."""
    from flwr.supernode.cli import flower_supernode

    _run_tasks_apart(f"{_value('--host')}:{_value('--port')}", ["--insecure"])
    flower_supernode()


def superexec() -> None:
    """Start the processes of apps, without their tokens on the command line."""
    from flwr.supercore.cli import flower_superexec

    _flower("flwr.supercore.superexec.run_superexec").get_executor = lambda *_, **__: _executor()
    flower_superexec()


def serverapp() -> None:
    from flwr.superlink.cli import flwr_serverapp

    _take_token()
    flwr_serverapp()


def clientapp() -> None:
    """Run a site's part of a round, with the installed fedssl, whatever app the server sends."""
    from flwr.supernode.cli import flwr_clientapp

    running = _flower("flwr.supernode.runtime.run_clientapp")
    running.install_from_fab = lambda *_, **__: None
    running.get_load_client_app_fn = lambda **_: _load_client_app
    _take_token()
    flwr_clientapp()


def _load_client_app(*_: object) -> object:
    """Import the app, and PyTorch with it, only now that the process sends heartbeats.

    Flower gives up a process that sends none for half a minute, and starts another one.
    """
    from fedssl.engines.flower.client import app

    return app


KINDS: dict[str, Callable[[], None]] = {
    "superlink": superlink,
    "supernode": supernode,
    "superexec": superexec,
    "serverapp": serverapp,
    "clientapp": clientapp,
}


def start(
    kind: str,
    words: Sequence[str],
    environment: dict[str, str] | None = None,
    output: IO[bytes] | int | None = None,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Start one of these processes as a child of this one.

    Args:
        kind: which one.
        words: the rest of its command line.
        environment: None: that of this process.
        output: its output; None: that of this process.
        options: other arguments of `subprocess.Popen`.
    """
    command = [sys.executable, "-m", "fedssl.engines.flower.process", str(os.getpid()), kind, *words]
    return subprocess.Popen(command, env=environment, stdout=output, stderr=output, **options)


def _run_tasks_apart(address: str, trust: list[str]) -> None:
    """Let only our own process start apps, authenticated by a secret, so that no other process gets tasks."""
    secret = ["--superexec-auth-secret-file", str(_home() / SECRET)]
    parent = ["--parent-pid", str(os.getpid())]
    start("superexec", ["--runtime-api-address", address, *trust, *secret, *parent], start_new_session=True)
    sys.argv += ["--isolation", "process", *secret]
    os.umask(0o077)  # databases and logs of this process; apps, started above, keep the user's mask


def _executor() -> object:
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND
    from flwr.supercore.superexec.executor import LaunchResult, SubprocessExecutor
    from flwr.supercore.superexec.executor.types import ExecutionSpec

    class Executor(SubprocessExecutor):
        def __init__(self) -> None:
            self.running: list[subprocess.Popen[bytes]] = []

        def launch(self, spec: ExecutionSpec) -> LaunchResult:
            kind = TASK_TYPE_TO_COMMAND[spec.task_type].removeprefix("flwr-")
            if kind not in ("serverapp", "clientapp"):
                return LaunchResult.failed(f"fedssl does not run {kind}")
            words = ["--runtime-api-address", spec.runtime_api_address, "--parent-pid", str(os.getpid())]
            if spec.insecure:
                words.append("--insecure")
            elif spec.root_certificates_path is not None:
                words += ["--root-certificates", spec.root_certificates_path]
            output = subprocess.DEVNULL if spec.suppress_output else None
            process = start(kind, words, output=output, stdin=subprocess.PIPE)
            if kind == "clientapp":
                self.end_stale(process)
            assert process.stdin is not None
            with process.stdin:
                process.stdin.write(spec.token.encode() + b"\n")
            return LaunchResult.accepted()

        def end_stale(self, newest: subprocess.Popen[bytes]) -> None:
            """End all but the newest process and the one before, which may still be sending its answer.

            A site works on one message at a time: Flower has given up the others. Without this, a site that
            starts processes too slowly would start more and more of them.
            """
            alive = [each for each in self.running if each.poll() is None]
            for stale in alive[:-1]:
                stale.kill()
                stale.wait()
            self.running = [*alive[-1:], newest]

    return Executor()


def _take_token() -> None:
    """Pass the token to Flower without the command line, which `ps` would show."""
    sys.argv += ["--token", sys.stdin.readline().strip()]


def _home() -> Path:
    return Path(os.environ["FLWR_HOME"])


def _value(option: str) -> str:
    return sys.argv[sys.argv.index(option) + 1]


def _flower(module: str) -> Any:
    """A module of Flower's by name: some of its packages have a function of the same name."""
    return importlib.import_module(module)


def main() -> None:
    parent, kind = int(sys.argv.pop(1)), sys.argv.pop(1)
    start_parent_process_monitor(parent)
    KINDS[kind]()


if __name__ == "__main__":
    main()
