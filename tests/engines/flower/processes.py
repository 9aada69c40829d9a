"""A federation of real processes on this machine: a server, sites, and a recorder between them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from tests.engines.flower.grid import site_folders
from tests.suite.waiting import files_state, slowness, wait_until

from fedssl.config import Config, load
from fedssl.engines.flower.certs import make_certs
from fedssl.engines.local import InProcess, Local
from fedssl.engines.tasks import Outcome, Task
from fedssl.methods.fedema import FedEMA
from fedssl.rundir import RunDir
from fedssl.storage import write_toml

ROOT = Path(__file__).parents[3]
RETURN = 1800.0  # seconds in which every site comes back to a server that was started again

SHAPE = {"data.name": "none", "data.limit": 0, "data.size": 8, "data.channels": 1}


class Process:
    """A command in its own session, with its output in a file."""

    def __init__(self, log: Path, *words: str) -> None:
        folders = (ROOT, ROOT / "src", Path(__file__).parent / "heartbeat")
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            "OMP_NUM_THREADS": "1",
            # A slow machine uses Flower's own interval, so that a busy site is not considered lost.
            "FEDSSL_TEST_HEARTBEAT": str(round(min(30, 10 * slowness()))),
        }
        self.log = log
        with open(log, "ab") as output:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "fedssl.cli", *words],
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """Kill all its processes at once, like a power failure."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()

    def kill_parent(self) -> None:
        """Kill only the process that was started; its children must notice."""
        self.popen.kill()
        self.popen.wait()


class Sites:
    """Certificates, images and processes of a federation whose clients are those of a local run."""

    def __init__(self, folder: Path, config: Config, listen: bool = False) -> None:
        self.folder, self.port = folder, free_port()
        self.images = site_folders(config, folder / "data")
        self.names = [f"site-{client}" for client in range(len(self.images))]
        make_certs(folder / "keys", ["localhost"], self.names)
        self.run = folder / "run"
        self.recorder = Recorder(folder / "keys" / "server", self.port) if listen else None
        self.processes: list[Process] = []

    def configure(self, values: dict[str, Any], **keys: Any) -> None:
        served = {"engine.name": "flower", "participation.max_change": 10.0, "log.audit": True}
        config = load(values, {**SHAPE, **served, **keys})
        write_toml(self.folder / "server.toml", config.to_dict())

    def server(self) -> Process:
        place = (
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--certs",
            str(self.folder / "keys" / "server"),
        )
        return self._start(
            "server", "server", str(self.folder / "server.toml"), "--out", str(self.run), *place
        )

    def client(self, number: int, *, name: str = "", trust: Sequence[str] = ()) -> Process:
        name = name or self.names[number]
        port = self.port if self.recorder is None else self.recorder.port
        return self._start(
            name,
            *("client", "--server", f"localhost:{port}", "--data", str(self.images[number])),
            *("--state", str(self.state(name))),
            *(trust or ("--certs", str(self.folder / "keys" / name))),
            "--trust",  # methods of the tests
        )

    def state(self, name: str) -> Path:
        return self.folder / "state" / name

    def _start(self, log: str, *words: str) -> Process:
        self.processes.append(Process(self.folder / f"{log}.log", *words))
        return self.processes[-1]

    def has_keys(self) -> bool:
        """Whether the server has registered its sites: earlier ones are refused and try again later."""
        file = self.run / "flower" / "sites.json"
        return file.exists() and json.loads(file.read_text()).keys() >= set(self.names)

    def rounds(self) -> int:
        return len(RunDir(self.run).metrics())

    def wait(self, condition: Callable[[], bool], what: str, *watched: Process) -> None:
        """Wait while server and sites make progress; a watched process that ends early is an error."""
        wait_until(
            condition,
            what,
            running=[process.popen for process in watched],
            progress=self.progress,
            poll=0.2,
            details=self.logs,
        )

    def progress(self) -> object:
        """The output of the server and its own sites; refused sites write forever."""
        logs = [self.folder / f"{name}.log" for name in ("server", *self.names)]
        return files_state(*logs, self.run / "metrics.jsonl", self.run / "checkpoints")

    def logs(self) -> str:
        files = [*sorted(self.folder.glob("*.log")), *self.run.glob("flower/superlink.log")]
        return "\n".join(f"== {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        if self.recorder is not None:
            self.recorder.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Recorder:
    """Records the traffic between sites and server, which it can read because it has the server's key."""

    def __init__(self, certs: Path, upstream: int) -> None:
        self.port, self.upstream = free_port(), upstream
        self.up: list[bytearray] = []
        self.down: list[bytearray] = []
        self._inner = ssl.create_default_context(cafile=str(certs / "ca.crt"))
        self._outer = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._outer.load_cert_chain(certs / "server.crt", certs / "server.key")
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda *_: None)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        starting = asyncio.start_server(self._meet, "127.0.0.1", self.port, ssl=self._outer)
        self._loop.run_until_complete(starting)
        self._loop.run_forever()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server = await asyncio.open_connection("localhost", self.upstream, ssl=self._inner)
        except OSError:
            writer.close()
            return
        self.up.append(bytearray())
        self.down.append(bytearray())
        await asyncio.gather(
            self._pass(reader, server[1], self.up[-1]), self._pass(server[0], writer, self.down[-1])
        )

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray
    ) -> None:
        try:
            while data := await reader.read(1 << 16):
                kept += data
                writer.write(data)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


# --- the same run on one machine ------------------------------------------------------------------


class Replay(Local):
    """A local run in which the clients fail that failed, or were absent, in another run."""

    seen: str = Field("", description="metrics.jsonl of the other run")

    def clients(self, config: Any, runner: Any, federation: Any) -> Any:
        lines = [json.loads(line) for line in Path(self.seen).read_text().splitlines()]
        there = {line["round"]: {client["client"] for client in line["clients"]} for line in lines}
        return Replayed(runner, there)


class Replayed(InProcess):
    def __init__(self, runner: Any, there: dict[int, set[int]]) -> None:
        super().__init__(runner)
        self.there = there

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        for task in tasks:
            if task.client in self.there[task.round]:
                yield self.runner.run(task)
            else:
                yield Outcome(task.client, failure="was away")


class Mallory(FedEMA):
    """Client 3 sends NaN in round 1, a wrong shape in round 2, and a 100× too large model in round 3."""

    def train(self, client: Any) -> Any:
        training = super().train(client)
        if client.id == 3:
            with torch.no_grad():
                self._spoil(client.model, client.round)
        return training

    def _spoil(self, model: Any, round: int) -> None:
        if round == 1:
            next(model.parameters()).fill_(float("nan"))
        elif round == 2:
            norm = next(m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d))
            norm.running_mean = torch.zeros(1)
        elif round == 3:
            for value in model.parameters():
                value.mul_(100)
