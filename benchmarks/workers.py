"""Rounds with two worker processes that share the cores, against one process with all of them.

    python benchmarks/workers.py [--clients 1,2,3,5,6] [--encoders resnet8:4,resnet8:16] [--rounds 5]
                                 [--partitions iid,dirichlet]

Clients of a wave share all threads (engine.wave), so that one that is left over at the end of a round has all
cores. The first two rounds do not count: in the first, workers still import PyTorch. Clients of `dirichlet`
have very different numbers of images.

The one process runs twice, and contestants take turns of a round. How far the two are from their mean is what
chance does here; it stands beside each ratio.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from pacing import config_of, in_turns, random_images, ratio, whole_run
from ratios import Ratio, report


def measure(clients: int, encoder: str, width: int, partition: str, rounds: int, folder: Path) -> Ratio:
    file = random_images(folder, clients * 384)
    settings = {"partition": partition, "partition__clients": clients}
    settings |= {"model__encoder": encoder, "model__width": width}
    runs = {
        name: whole_run(
            config_of(file, **settings, engine__workers=workers),
            folder / f"{clients}-{encoder}-{width}-{partition}-{name}",
        )
        for name, workers in (("one", 1), ("two", 2), ("one again", 1))
    }
    seconds = in_turns(runs, rounds, turn=None)
    one, again = seconds["one"], seconds["one again"]
    both = [(a + b) / 2 for a, b in zip(one, again, strict=True)]
    return Ratio(
        f"a round with two workers against one process, all threads, {clients} {partition} clients, "
        f"{encoder} width {width}",
        ratio(seconds["two"], both),
        most=1.0,
        note=f"{sum(seconds['two'][-rounds:]) / rounds:.2f} and {sum(both[-rounds:]) / rounds:.2f} s; "
        f"one process against itself ± {abs(ratio(one, both) - 1):.1%}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", default="1,2,3,5,6")
    parser.add_argument("--encoders", default="resnet8:4,resnet8:16", help="with their widths")
    parser.add_argument("--partitions", default="iid", help="how images are dealt")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        report(
            measure(int(clients), encoder, int(width), partition, options.rounds, Path(temporary))
            for partition in options.partitions.split(",")
            for clients in options.clients.split(",")
            for encoder, _, width in (word.partition(":") for word in options.encoders.split(","))
        )


if __name__ == "__main__":
    main()
