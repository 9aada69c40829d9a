"""The cost of secure aggregation and noise: time and bytes of a round, relative to plain rounds.

    python benchmarks/secure_aggregation.py --clients 10 50 --repeat 3

Every client trains one step on two digits, so that a round is mostly communication and aggregation. Modes
take turns, and the best of the repeats counts. All clients are in one process; real sites do the clients'
part of the work in parallel.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import fedssl

BASE: dict[str, Any] = {
    "data": {"name": "digits", "limit": 400},
    "train": {"batch_size": 2, "epochs": 0.1},
    "probe": {"every": 0, "protocol": "none"},
    "engine": {"threads": 1},
    "log": {"tensorboard": False},
    "checkpoint": {"every": 100},
    "rounds": 2,
}
CLIENT = {"privacy.mode": "client", "privacy.noise": 1.0}
SECURE = {"privacy.secure": True, "participation.max_images": 64}
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "secure, 64 bits": SECURE,
    "secure, 32 bits": {**SECURE, "privacy.bits": 32},
    "noise": CLIENT,
    "noise, secure": {**CLIENT, **SECURE},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--width", type=int, default=16, help="model.width")
    options = parser.parse_args()
    print("| clients | mode | seconds per round | × plain | MB up per client | MB down per client |")
    print("|---|---|---|---|---|---|")
    for clients in options.clients:
        seconds: dict[str, float] = {}
        sent: dict[str, tuple[float, float]] = {}
        for _ in range(options.repeat):
            for mode, keys in MODES.items():
                line = measure(clients, options.width, keys)
                seconds[mode] = min(line["seconds"], seconds.get(mode, line["seconds"]))
                sent[mode] = (line["bytes_up"] / clients / 1e6, line["bytes_down"] / clients / 1e6)
        for mode in MODES:
            up, down = sent[mode]
            times = seconds[mode] / seconds["plain"]
            print(
                f"| {clients} | {mode} | {seconds[mode]:.2f} | {times:.2f} | {up:.2f} | {down:.2f} |",
                flush=True,
            )


def measure(clients: int, width: int, keys: dict[str, Any]) -> dict[str, Any]:
    """Time and bytes of the second of two rounds."""
    sizes = {"partition": {"scheme": "iid", "clients": clients}, "model.width": width}
    with tempfile.TemporaryDirectory() as folder:
        run = fedssl.run(BASE, out=Path(folder) / "run", quiet=True, **sizes, **keys)
        return run.metrics[-1]


if __name__ == "__main__":
    main()
