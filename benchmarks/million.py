"""A million clients against a thousand: start-up, memory, disk and rounds of 100 clients with memories.

Both runs have the same million images of 8×8 pixels in memory, and every client trains on one of them (FedEMA
with BYOL, so that all who take part have a memory on disk). Each run is a process; its start-up is counted
from the start of Python to the first round.

    python benchmarks/million.py [--clients 1000,1000000] [--rounds 5] [--workers 1]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BEGAN = time.perf_counter()

from pacing import config_of, random_images  # noqa: E402
from ratios import Ratio, report  # noqa: E402

from fedssl.experiment import peak_memory_mb, run  # noqa: E402
from fedssl.listener import RunInfo  # noqa: E402

from clients import Timed  # noqa: E402  isort: skip

IMAGES = 1_000_000


class Start(Timed):
    """Counts from the start of Python; also processor time, which other programs do not change."""

    def started(self, info: RunInfo) -> None:
        self.ready, self.cpu = time.perf_counter() - BEGAN, time.process_time()


def one(options: argparse.Namespace, clients: int) -> None:
    """Train, and print the measurements."""
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(
            Path(options.images),
            partition__clients=clients,
            partition__amount=min(1.0, clients / IMAGES),
            participation__per_round=100,
            model__width=8,
            objective="byol",
            method="fedema",
            rounds=options.rounds,
            engine__workers=options.workers,
        )
        timed = Start()
        run(config, Path(folder) / "run", timed)
        files = {file.name: file.stat().st_size for file in (Path(folder) / "run").glob("partition*")}
        found = {"ready": timed.ready, "cpu": timed.cpu, "round": statistics.median(timed.rounds)}
        found |= {"memory": peak_memory_mb(), "partition": sum(files.values()) / 2**20}
        print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", default="1000,1000000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--images", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(options, options.one)
        return
    counts, found = [int(word) for word in options.clients.split(",")], {}
    with tempfile.TemporaryDirectory() as folder:
        images = str(random_images(Path(folder), IMAGES, side=8))
        for count in counts:
            words = [sys.executable, __file__, "--one", str(count), "--images", images]
            words += ["--rounds", str(options.rounds), "--workers", str(options.workers)]
            answer = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
            found[count] = json.loads(answer.stdout.splitlines()[-1])
    few, many = counts[0], counts[-1]
    most, least = found[many], found[few]
    notes = {key: f"{most[key]:,.3g} and {least[key]:,.3g}" for key in most}
    against = f"{many:,} clients against {few:,}"
    report(
        [
            Ratio(f"start-up, {many:,} clients", most["ready"], "s", most=20, note=f"{notes['ready']} s"),
            Ratio(
                f"memory, {against}", most["memory"] / least["memory"], most=2, note=f"{notes['memory']} MB"
            ),
            Ratio(f"a round of 100, {against}", most["round"] / least["round"], note=f"{notes['round']} s"),
            Ratio(f"partition on disk, {many:,} clients", most["partition"], "MB", note=notes["partition"]),
        ]
    )


if __name__ == "__main__":
    main()
