"""A run of 1,000 rounds: memory, files and threads do not grow.

Measured after every round and averaged over rounds 51 to 150 and over the last 100: memory, open files and
threads of the run's processes, files and bytes in its folder, seconds of a round. Clients have memories
(FedEMA with BYOL), a checkpoint is written every five rounds, and a tenth of the clients fails in each round.

    python benchmarks/soak.py [--rounds 1000] [--workers 1] [--set KEY=VALUE …]

Exits with 1 if memory, files or threads grow by more than 2 %.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from ratios import Ratio, report

from fedssl.config import load, parse_overrides
from fedssl.experiment import run
from fedssl.listener import Listener

KEYS: dict[str, Any] = {
    "data": {"name": "digits", "limit": 200},
    "partition": {"scheme": "iid", "clients": 20},
    "model": {"width": 4, "projector_hidden": 16, "projector_out": 16, "predictor_hidden": 8},
    "objective": "byol",
    "method": "fedema",
    "train": {"batch_size": 8, "epochs": 1.0},
    "participation": {"per_round": 5, "failure_rate": 0.1},
    "probe": {"every": 50, "protocol": "none"},
    "engine": {"threads": 1},
}


class Watch(Listener):
    """Measures this process and its workers after every round."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.me = folder, psutil.Process()
        self.found: list[dict[str, float]] = []

    def round(self, line: dict[str, Any]) -> None:
        processes = [self.me, *self.me.children(recursive=True)]
        files = sizes(self.folder)
        self.found.append(
            {
                "memory": sum(each.memory_info().rss for each in processes) / 2**20,
                "open files": sum(each.num_fds() for each in processes),
                "threads": sum(each.num_threads() for each in processes),
                "python threads": threading.active_count(),
                "files of the run": len(files),
                "bytes of the run without metrics.jsonl": sum(files.values()) - files["metrics.jsonl"],
                "seconds a round": line["seconds"],
            }
        )


def sizes(folder: Path) -> Counter[str]:
    """Bytes of all files; some may be removed meanwhile, since checkpoints are written in the background."""
    found = Counter[str]()
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            if file.is_file():
                found[str(file.relative_to(folder))] = file.stat().st_size
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    keys = {"rounds": options.rounds, "engine.workers": options.workers, **parse_overrides(options.set)}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        watch = Watch(Path(place) / "run")
        run(load(KEYS, keys), watch.folder, watch)
    early, late = watch.found[50:150], watch.found[-100:]
    ratios = []
    for what in early[0]:
        first, last = (statistics.mean(each[what] for each in part) for part in (early, late))
        note = f"{first:,.4g} and {last:,.4g}"
        most = None if what == "seconds a round" else 1.02
        ratios.append(
            Ratio(f"{what}: last 100 rounds against rounds 51 to 150", last / first, most=most, note=note)
        )
    report(ratios)
    print(f"{options.rounds:,} rounds in {time.monotonic() - began:.0f} s")
    sys.exit(not all(ratio.reached for ratio in ratios))


if __name__ == "__main__":
    main()
