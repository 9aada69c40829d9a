"""Early stop: a callback that ends a run when its kNN accuracy has stopped rising.

A listener is told of every round and may end training by raising `fedssl.StopRun`. The run then finishes as
usual: final probes, the encoder, and result.json with the number of rounds that were done.

    python examples/early_stop.py
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import fedssl


class EarlyStop(fedssl.Listener):
    """Stops a run when kNN accuracy has not improved for `patience` probes."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.best = 0.0
        self.waited = 0

    def round(self, line: dict[str, Any]) -> None:
        knn = line.get("probe", {}).get("knn")
        if knn is None:  # this round was not probed
            return
        self.waited = 0 if knn > self.best else self.waited + 1
        self.best = max(self.best, knn)
        if self.waited >= self.patience:
            raise fedssl.StopRun(f"kNN has not improved for {self.patience} probes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="at most")
    parser.add_argument("--patience", type=int, default=3)
    parser.add_argument("--images", type=int, default=800)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = fedssl.run(
            rounds=options.rounds,
            data={"name": "digits", "limit": options.images},
            probe={"every": 1, "protocol": "knn"},
            engine={"threads": 1},
            out=Path(folder) / "run",
            quiet=True,
            listeners=[EarlyStop(options.patience)],
        )
        for line in run.metrics:
            print(f"round {line['round']:>2}  kNN {line['probe']['knn']:.1%}")
        print(f"{run.result['rounds']} of {options.rounds} rounds: {run.result['stopped'] or 'all'}")


if __name__ == "__main__":
    main()
