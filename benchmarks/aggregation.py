"""Aggregation rules: time and memory for ResNet-18-sized uploads, against a copy and against Flower.

    python benchmarks/aggregation.py --clients 10 100 --repeat 5 --threads 1

Every rule is timed from the first upload to the new global state, and divided by three times of
the same run: one copy of the same bytes (`/copy`), fedssl's FedAvg (`/fedavg`), and Flower's
(`/flower`, if flwr is installed). `bare sum` adds the uploads up without anything else, not even
the angles that every rule reports. Rows take turns, and the best of the repeats counts:
processor time with one thread, which a busy machine distorts little, and wall time with more.

Limits: fedavg ≤ 3 copies; l-dawa and m-dawa ≤ 1.5 fedavg; memory that does not grow with clients.
The robust rules hold all uploads and sort every coordinate: they are timed up to 10 clients.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.models import resnet18

from fedssl.aggregation import AGGREGATIONS, build
from fedssl.aggregation.robust import Robust
from fedssl.state import State, Upload

BUFFERS = 10  # distinct uploads; further clients send them again
ROBUST_UP_TO = 10
LIMITS = [("fedavg", "copy", 3.0), ("l-dawa", "fedavg", 1.5), ("m-dawa", "fedavg", 1.5)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rules", nargs="+", default=list(AGGREGATIONS), choices=list(AGGREGATIONS))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    previous, statistics = resnet(), statistics_of_resnet()
    states = [perturbed(previous, seed) for seed in range(BUFFERS)]
    megabytes = sum(tensor.nbytes for tensor in previous.values()) / 2**20
    print(f"{len(previous)} tensors, {megabytes:.1f} MB per upload, {options.threads} threads")
    within = True
    for clients in options.clients:
        rows = timed(previous, statistics, states, clients, options.rules)
        seconds = best_of(
            rows, options.repeat, time.process_time if options.threads == 1 else time.perf_counter
        )
        within &= table(clients, seconds)
    if sys.platform == "linux":
        streaming = [name for name in options.rules if not isinstance(build(name), Robust)]
        peaks = [peak_memory(clients, streaming) for clients in options.clients]
        shown = ", ".join(
            f"{clients} clients {peak:.0f} MB" for clients, peak in zip(options.clients, peaks, strict=True)
        )
        print(f"\npeak memory of {', '.join(streaming)}, beyond the uploads: {shown}")
        within &= max(peaks) - min(peaks) <= megabytes
    return 0 if within else 1


def resnet() -> State:
    torch.manual_seed(0)
    return {name: tensor.detach().clone() for name, tensor in resnet18(num_classes=128).state_dict().items()}


def statistics_of_resnet() -> frozenset[str]:
    return frozenset(name for name, buffer in resnet18().named_buffers() if buffer.is_floating_point())


def perturbed(previous: State, seed: int) -> State:
    rng = torch.Generator().manual_seed(seed)
    return {
        name: tensor + 0.01 * torch.randn(tensor.shape, generator=rng)
        if tensor.is_floating_point()
        else tensor + seed
        for name, tensor in previous.items()
    }


def floating(state: State) -> Iterator[tuple[str, Tensor]]:
    return ((name, tensor) for name, tensor in state.items() if tensor.is_floating_point())


def uploads(states: list[State], clients: int) -> Iterator[Upload]:
    for client in range(clients):
        yield Upload(
            client, states[client % len(states)], num_samples=100 + client, loss=1.0 + client % 7 / 10
        )


def timed(
    previous: State, statistics: frozenset[str], states: list[State], clients: int, rules: list[str]
) -> dict[str, Callable[[], Any]]:
    """The functions to time, by row."""

    def rule(name: str) -> Callable[[], Any]:
        def aggregate() -> None:
            fold = build(name).start(previous, statistics)
            for upload in uploads(states, clients):
                fold.add(upload)
            fold.finish()

        return aggregate

    rows: dict[str, Callable[[], Any]] = {
        "copy": lambda: copies(states, clients),
        "bare sum": lambda: bare_sum(states, clients),
    }
    try:
        rows["flower fedavg"] = flower(states, clients)
    except ImportError:
        print("flwr is not installed: no comparison with it")
    small = clients <= ROBUST_UP_TO
    return rows | {name: rule(name) for name in rules if small or not isinstance(build(name), Robust)}


def copies(states: list[State], clients: int) -> None:
    to = {name: torch.empty_like(tensor) for name, tensor in states[0].items()}
    for upload in uploads(states, clients):
        for name, tensor in upload.state.items():
            to[name].copy_(tensor)


def bare_sum(states: list[State], clients: int) -> dict[str, Tensor]:
    total = {name: torch.zeros_like(tensor) for name, tensor in states[0].items()}
    for upload in uploads(states, clients):
        for name, tensor in upload.state.items():
            total[name].add_(tensor, alpha=upload.num_samples)
    return total


def flower(states: list[State], clients: int) -> Callable[[], Any]:
    """Flower's FedAvg, which adds up records of encoded arrays as it decodes them; encoding is not timed."""
    from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
    from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

    arrays = [
        ArrayRecord({name: Array(tensor.numpy()) for name, tensor in floating(state)}) for state in states
    ]
    records = []
    for upload in uploads(states, clients):
        metrics = MetricRecord({"num-examples": upload.num_samples})
        records.append(RecordDict({"arrays": arrays[upload.client % len(states)], "metrics": metrics}))
    return lambda: aggregate_arrayrecords(records, "num-examples")


def best_of(rows: dict[str, Callable[[], Any]], repeat: int, clock: Callable[[], float]) -> dict[str, float]:
    """Seconds by row. Rows take turns, so that other load on the machine affects all of them."""
    best = dict.fromkeys(rows, float("inf"))
    for _ in range(repeat):
        for name, run in rows.items():
            began = clock()
            run()
            best[name] = min(best[name], clock() - began)
    return best


def peak_memory(clients: int, rules: list[str]) -> float:
    """Peak memory of the rules beyond the uploads in MB, measured in a separate process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_peak_memory, clients, rules).result()


def _peak_memory(clients: int, rules: list[str]) -> float:
    previous, statistics = resnet(), statistics_of_resnet()
    states = [perturbed(previous, 0)]
    ctypes.CDLL(None).malloc_trim(0)  # memory left from creating states must not hide what rules need
    before = _status("VmRSS")
    for name in rules:
        build(name)(previous, uploads(states, clients), statistics)
    return (_status("VmHWM") - before) / 1024


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))


def table(clients: int, seconds: dict[str, float]) -> bool:
    """Print the rows; returns whether all limits are met."""
    copy, fedavg, flwr = (seconds.get(name, float("nan")) for name in ("copy", "fedavg", "flower fedavg"))
    print(f"\n{clients} clients{'':10}ms    /copy  /fedavg  /flower")
    for name, value in seconds.items():
        ratios = f"{value / copy:8.2f} {value / fedavg:8.2f} {value / flwr:8.2f}"
        print(f"{name:14}{value * 1e3:12.1f} {ratios}")
    kept = True
    for name, against, limit in LIMITS:
        if name in seconds and against in seconds:
            ratio = seconds[name] / seconds[against]
            print(f"{name} ≤ {limit} × {against}: {ratio:.2f}{'' if ratio <= limit else '  EXCEEDED'}")
            kept &= ratio <= limit
    return kept


if __name__ == "__main__":
    sys.exit(main())
