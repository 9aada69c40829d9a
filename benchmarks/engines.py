"""What an engine costs, whatever is trained: start-up, every round, and every client of a round.

Clients do nothing but send back what they got: 0.1, 5 or 45 MB. The bare loop copies the tensors for every
client and averages them, in one process without files. Rounds with one client and with several tell apart
what a round costs and what a client costs; what comes before the first round is start-up. Of all rounds but
the first the fastest counts, since whatever else a machine does makes rounds slower and never faster.

    python benchmarks/engines.py [--engines bare,local,workers,ray,sites] [--megabytes 0.1,5,45] [--rounds 5]

`local` is one process, `workers` two, `ray` is Flower's simulation with one process, `sites` a SuperLink and
SuperNodes over TLS on this machine (extra `flower`): a site looks for work every 3 seconds and starts a
process for each task.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import nn

from fedssl import experiment
from fedssl.config import load
from fedssl.listener import Listener
from fedssl.methods.client import Client
from fedssl.methods.fedavg import FedAvg
from fedssl.methods.training import Training
from fedssl.models.model import Model, Part
from fedssl.models.options import ModelConfig
from fedssl.objectives.objective import Objective

HERE = Path(__file__).resolve()


class Payload(Objective):
    """So many megabytes beside the encoder."""

    megabytes: float = Field(0.1, gt=0, description="of the payload")

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        payload = nn.Module()
        payload.weight = nn.Parameter(torch.zeros(round(self.megabytes * 2**20 / 4)))
        return Model(encoder=Part(encoder), payload=Part(payload))


class Echo(FedAvg):
    """Training that does nothing."""

    def train(self, client: Client) -> Training:
        return Training(0.0, 1, 0)


class Cost(NamedTuple):
    """Seconds before the first round, and of a round."""

    start: float
    round: float


def settings(megabytes: float, clients: int, rounds: int) -> dict[str, Any]:
    return {
        "data.limit": 100,
        "partition": "iid",
        "partition.clients": clients,
        "model.width": 4,
        "objective.name": f"{HERE}:Payload",
        "objective.megabytes": megabytes,
        "method.name": f"{HERE}:Echo",
        "rounds": rounds,
        "probe.every": 0,
        "probe.protocol": "none",
        "checkpoint.every": rounds,
        "engine.threads": 1,
        "log.tensorboard": False,
    }


def bare(megabytes: float, clients: int, rounds: int, folder: Path) -> Cost:
    """Copies and a mean, nothing else."""
    began = time.monotonic()
    state = torch.zeros(round(megabytes * 2**20 / 4))
    start, seconds = time.monotonic() - began, []
    for _ in range(10):
        began, total = time.monotonic(), torch.zeros_like(state)
        for _ in range(clients):
            received = state.clone()
            total += received.clone()
        state = total / clients
        seconds.append(time.monotonic() - began)
    return Cost(start, min(seconds))


class Watch(Listener):
    """When the first round ended."""

    def __init__(self) -> None:
        self.first = 0.0

    def round(self, line: dict[str, Any]) -> None:
        self.first = self.first or time.monotonic()


def here(**engine: Any) -> Callable[[float, int, int, Path], Cost]:
    """A run in this process, or with processes that it starts."""

    def measure(megabytes: float, clients: int, rounds: int, folder: Path) -> Cost:
        watch, began = Watch(), time.monotonic()
        config = load(None, {**settings(megabytes, clients, rounds), **engine})
        directory = experiment.run(config, folder / "run", watch)
        return from_lines(directory.metrics(), watch.first - began)

    return measure


def from_lines(lines: list[dict[str, Any]], until_first: float) -> Cost:
    """Start-up is what the end of the first round took beyond a round."""
    fastest = min(line["seconds"] for line in lines[1:])
    return Cost(until_first - fastest, fastest)


def sites(megabytes: float, clients: int, rounds: int, folder: Path) -> Cost:
    """`fedssl server` and as many `fedssl client` as there are clients."""
    from PIL import Image

    from fedssl.engines.flower.certs import make_certs
    from fedssl.engines.flower.launch import free_port
    from fedssl.storage import write_toml

    names, port = [f"site-{client}" for client in range(clients)], free_port()
    make_certs(folder / "keys", [], names)
    (folder / "images").mkdir()
    for number in range(10):
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(folder / "images" / f"{number}.png")
    shape = {"data.name": "none", "data.limit": 0, "data.size": 8, "data.channels": 1}
    keys = {**settings(megabytes, clients, rounds), **shape, "engine.name": "flower"}
    config = load(None, {**keys, "participation.min_clients": clients})
    write_toml(folder / "server.toml", config.to_dict())
    place = ["--host", "127.0.0.1", "--port", str(port), "--certs", str(folder / "keys" / "server")]
    began, processes = time.monotonic(), []
    try:
        server = start("server", str(folder / "server.toml"), "--out", str(folder / "run"), *place)
        processes.append(server)
        # A site that comes before the server knows it is refused and waits before it comes again.
        while not known(folder / "run" / "flower" / "sites.json", names) and server.poll() is None:
            time.sleep(0.05)
        for name in names:
            words = ["--server", f"localhost:{port}", "--data", str(folder / "images")]
            words += ["--certs", str(folder / "keys" / name), "--state", str(folder / name)]
            processes.append(start("client", *words))
        metrics, first = folder / "run" / "metrics.jsonl", 0.0
        while server.poll() is None:
            if not first and metrics.exists() and metrics.read_text():
                first = time.monotonic()
            time.sleep(0.05)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        return from_lines(lines, first - began)
    finally:
        for process in processes:
            process.terminate()
            process.wait()


def known(file: Path, names: list[str]) -> bool:
    return file.exists() and json.loads(file.read_text()).keys() >= set(names)


def start(*words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fedssl.cli", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


# How an engine is measured, and the number of clients beside one.
ENGINES: dict[str, tuple[Callable[[float, int, int, Path], Cost], int]] = {
    "bare": (bare, 8),
    "local": (here(), 8),
    "workers": (here(**{"engine.workers": 2}), 8),
    "ray": (here(**{"engine.name": "flower"}), 8),
    "sites": (sites, 2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--megabytes", default="0.1,5,45")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)  # as in all engines
    print(f"{'engine':<10}{'MB':>6}{'start-up s':>12}{'round ms':>12}{'client ms':>12}{'beyond bare':>12}")
    floor: dict[float, float] = {}
    for name in options.engines.split(","):
        measure, several = ENGINES[name]
        for megabytes in map(float, options.megabytes.split(",")):
            with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as many:
                alone = measure(megabytes, 1, options.rounds, Path(one))
                together = measure(megabytes, several, options.rounds, Path(many))
            client = (together.round - alone.round) / (several - 1)
            beyond = client - floor.setdefault(megabytes, client if name == "bare" else 0.0)
            print(
                f"{name:<10}{megabytes:>6g}{alone.start:>12.1f}{1000 * (alone.round - client):>12.1f}"
                f"{1000 * client:>12.1f}{1000 * beyond:>12.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
