"""Rounds with two worker processes of one thread each, against one process with all cores.

    python benchmarks/workers.py [--clients 5,6] [--encoders resnet8:4,resnet8:16,resnet18:16] [--rounds 5]

An odd number of clients leaves one of the workers without work at the end of a round.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from pacing import config_of, in_turns, random_images, ratio, whole_run
from ratios import Ratio, report


def measure(clients: int, encoder: str, width: int, rounds: int, folder: Path) -> list[Ratio]:
    file = random_images(folder, clients * 384)
    settings = {"partition__clients": clients, "model__encoder": encoder, "model__width": width}
    engines = {"one process, all threads": (1, 0), "one process, one thread": (1, 1), "two workers": (2, 1)}
    runs = {
        name: whole_run(
            config_of(file, **settings, engine__workers=workers, engine__threads=threads),
            folder / f"{clients}-{encoder}-{width}-{workers}-{threads}",
        )
        for name, (workers, threads) in engines.items()
    }
    seconds = in_turns(runs, rounds)
    return [
        Ratio(
            f"a round with two workers against {name}, {clients} clients, {encoder} width {width}",
            ratio(seconds["two workers"], seconds[name]),
            most=1.0,
        )
        for name in list(engines)[:2]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", default="5,6")
    parser.add_argument("--encoders", default="resnet8:4,resnet8:16,resnet18:16", help="with their widths")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        report(
            ratio
            for clients in options.clients.split(",")
            for encoder, _, width in (word.partition(":") for word in options.encoders.split(","))
            for ratio in measure(int(clients), encoder, int(width), options.rounds, Path(temporary))
        )


if __name__ == "__main__":
    main()
