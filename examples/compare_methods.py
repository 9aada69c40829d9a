"""Compare FedAvg, FedEMA and standalone training on handwritten digits, over several seeds.

Five clients have two of the ten digits each. Prints the linear probe of each method and in how many seeds it
beats standalone training. With few seeds, differences between means are often noise.

    python examples/compare_methods.py
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import fedssl

METHODS = ("fedavg", "fedema", "standalone")


def accuracy(method: str, seed: int, out: Path, settings: dict[str, Any]) -> tuple[float, float]:
    """The linear probe after training, and of the untrained encoder, in %."""
    run = fedssl.run(settings, method=method, seed=seed, out=out / f"{method}-{seed}", quiet=True)
    probe = next(probe for probe in run.result["probes"] if probe["protocol"] == "linear")
    return 100 * probe["accuracy"], 100 * probe["untrained"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--images", type=int, default=0, help="training images (0: all 1,438)")
    options = parser.parse_args()
    settings = {
        "rounds": options.rounds,
        "data": {"name": "digits", "limit": options.images},
        "partition": {"scheme": "classes", "clients": 5, "classes": 2},
        "probe": {"every": 0},
        "engine": {"threads": 1},  # small networks are slower with several threads
    }
    found: dict[str, list[float]] = {method: [] for method in METHODS}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seeds):
            for method in METHODS:
                trained, untrained = accuracy(method, seed, Path(folder), settings)
                found[method].append(trained)
                print(f"seed {seed}  {method:<10}  {trained:5.1f} %  (untrained {untrained:.1f} %)")
    print(f"\n{'method':<12}{'linear probe, %':<18}better than standalone")
    for method, values in found.items():
        spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
        pairs = zip(values, found["standalone"], strict=True)
        wins = sum(own > other for own, other in pairs)
        against = "–" if method == "standalone" else f"{wins} of {len(values)} seeds"
        print(f"{method:<12}{f'{mean(values):.1f}{spread}':<18}{against}")


if __name__ == "__main__":
    main()
