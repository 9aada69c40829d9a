"""Secure aggregation between real processes over TLS, some of which are killed between two exchanges.

    python -m tests.privacy.dropouts --clients 10 --die share mask unmask

starts a server and ten sites, kills one site before it shares its secrets, one before its masked
upload and one before it helps to unmask, and compares the model with that of a plain run of the sites in
the sum.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import fedssl
from fedssl.aggregation.fedavg import FedAvg
from fedssl.config import load
from fedssl.privacy.secure.client import SecureClient
from fedssl.privacy.secure.words import Parcel
from fedssl.state import State, Upload
from fedssl.tensorfile import load_tensors
from tests.engines.flower.processes import Sites
from tests.privacy.dies import DIES
from tests.small import SMALL

REPLAY = "tests.engines.flower.processes:Replay"
FLOAT32 = 2.0**-24  # relative error of one rounding


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        counted: clients whose integers are in the sum.
        lost: why others are not, by client.
        quantization: the largest error of rounding, as metrics.jsonl states it.
        error: the largest difference of a parameter from the plain run of `counted`.
        allowed: `quantisation` and the rounding of a plain sum in float32, of the same parameter.
        found: uploads in clear, as integers or as floating-point numbers, in what went over the wire.
        seconds: from the start of the server to its end.
    """

    counted: list[int]
    lost: dict[int, str]
    quantisation: float
    error: float
    allowed: float
    found: int
    seconds: float


def run_with_deaths(folder: Path, clients: int, stages: Sequence[str]) -> Outcome:
    """Train one round with a server and sites in separate processes.

    Args:
        folder: for everything that is written.
        clients: number of sites.
        stages: before which exchange one site each is killed; the last sites, in this order.
    """
    base: dict[str, Any] = {
        **SMALL,
        "partition": {"scheme": "iid", "clients": clients},
        "views": {"flip": 0.0},
    }
    base |= {"rounds": 1, "checkpoint": {"every": 1}}
    sites = Sites(folder / "sites", load(base), listen=True)
    first = clients - len(stages)
    dying = {first + place: stage for place, stage in enumerate(stages)}
    began = time.monotonic()
    try:
        sites.configure(base, **{"privacy.secure": True, "participation.min_clients": clients})
        server = sites.server()
        sites.wait(sites.has_keys, "sites should be registered", server)
        started = []
        for number in range(clients):
            with dying_before(dying.get(number), folder / f"asked-{number}"):
                started.append(sites.client(number))
        for number in dying:  # in the order of the exchanges
            sites.wait((folder / f"asked-{number}").exists, f"site {number} should be asked", server)
            started[number].kill()
        sites.wait(lambda: server.popen.poll() is not None, "the run should end")
        assert server.popen.returncode == 0, server.said()
        seconds = time.monotonic() - began
        assert sites.recorder is not None
        sent = b"\0".join(bytes(stream) for stream in [*sites.recorder.up, *sites.recorder.down])
    finally:
        sites.close()
    (line,) = fedssl.Run(sites.run).metrics
    plain, terms = plain_run(folder, base, sites.run)
    rounding = len(line["clients"]) * FLOAT32
    error, allowed = compare(sites.run, plain, line["quantisation"], rounding, terms)
    return Outcome(
        [client["client"] for client in line["clients"]],
        {failed["client"]: failed["reason"] for failed in line["failed"]},
        line["quantisation"],
        error,
        allowed,
        sum(piece in sent for piece in uploads_in_clear(folder, base)),
        seconds,
    )


@contextmanager
def dying_before(stage: str | None, marker: Path) -> Iterator[None]:
    """Context manager; processes that are started inside hang when they are asked for `stage`."""
    if stage is not None:
        os.environ[DIES] = f"{stage}:{marker}"
    try:
        yield
    finally:
        os.environ.pop(DIES, None)


def plain_run(folder: Path, base: dict[str, Any], other: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A run without secure aggregation in this process, of the clients that are in the other's sum.

    Returns:
        Its folder, and the largest absolute value of each parameter at any client.
    """
    terms: dict[str, torch.Tensor] = {}
    prepare = FedAvg.prepare

    def record(self: FedAvg, previous: State, upload: Upload, statistics: frozenset[str]) -> Upload:
        for name, value in upload.state.items():
            size = value.double().abs()
            terms[name] = torch.maximum(size, terms.get(name, size))
        return prepare(self, previous, upload, statistics)

    replay = {"engine.name": REPLAY, "engine.seen": str(other / "metrics.jsonl")}
    with patch.object(FedAvg, "prepare", record):
        return fedssl.run(base, out=folder / "plain", quiet=True, **replay).path, terms


def compare(
    first: Path, second: Path, quantization: float, rounding: float, terms: dict[str, torch.Tensor]
) -> tuple[float, float]:
    """The largest difference of a parameter, and how much the same parameter may differ.

    A mean of n numbers in float32 is wrong by up to n roundings of the largest of them, which is much for
    a parameter at which they cancel.
    """
    (mine, _), (theirs, _) = (
        load_tensors(run / "checkpoints" / "round-000001.safetensors") for run in (first, second)
    )
    worst = (0.0, quantization)
    for name, value in theirs.items():
        if value.is_floating_point():
            difference = (mine[name].double() - value.double()).abs().flatten()
            allowed = quantization + rounding * terms[name.removeprefix("model/")].flatten()
            place = int(torch.argmax(difference / allowed))
            here = float(difference[place]), float(allowed[place])
            worst = max(worst, here, key=lambda each: each[0] / each[1])
    return worst


def uploads_in_clear(folder: Path, base: dict[str, Any]) -> list[bytes]:
    """Parts of every client's integers and model, from a run of the same bits in this process."""
    parcels: dict[int, Parcel] = {}
    begin = SecureClient.begin

    def record(self: SecureClient, parcel: Parcel, noise: Any = None) -> bytes:
        parcels[self.client] = Parcel(parcel.tensors.copy(), parcel.numbers.copy())
        return begin(self, parcel, noise)

    SecureClient.begin = record  # type: ignore[method-assign]
    try:
        fedssl.run(base, out=folder / "local", quiet=True, **{"privacy.secure": True})
    finally:
        SecureClient.begin = begin  # type: ignore[method-assign]
    pieces = []
    for parcel in parcels.values():
        data = parcel.tensors.tobytes()
        places = (data[at : at + 32] for at in range(0, len(data), 4096))
        pieces += [piece for piece in places if len(set(piece)) > 8]
    return pieces


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--die", nargs="*", default=["share", "mask", "unmask"], metavar="STAGE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run_with_deaths(Path(folder), options.clients, options.die)
    print(f"{options.clients} sites, killed before: {', '.join(options.die) or 'nobody'}")
    print(f"in the sum: {found.counted}")
    for client, reason in found.lost.items():
        print(f"not in it: {client}, {reason}")
    print(f"stated quantization: {found.quantisation:.1e}")
    print(
        f"largest difference from the plain run: {found.error:.1e}; with float32: at most {found.allowed:.1e}"
    )
    print(f"pieces of uploads in clear on the wire: {found.found}")
    print(f"{found.seconds:.0f} s")
    assert found.error <= found.allowed
    assert not found.found


if __name__ == "__main__":
    main()
