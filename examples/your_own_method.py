"""A method of your own: clients with different cameras keep the first layers for themselves.

Every client sees digits turned by an angle of its own. The method below shares the encoder except for its
first layers, by naming what may leave a client; all else follows from that. It is compared with FedAvg,
where each client is probed on its own turned images. (Here it gains nothing, with one seed: a comparison
is what tells.)

    python examples/your_own_method.py
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

import fedssl
from fedssl.methods import METHODS
from fedssl.methods.fedavg import FedAvg
from fedssl.models.model import Model


class OwnEyes(FedAvg):
    """FedAvg whose clients keep the first layers of the encoder for themselves."""

    evaluates: ClassVar[Literal["global", "cluster", "personal"]] = "personal"

    layers: tuple[str, ...] = Field(("conv1", "bn1"), description="parts of the encoder that stay")

    def shares(self, model: Model) -> list[str]:
        own = tuple(f"encoder.{layer}." for layer in self.layers)
        return [name for name in super().shares(model) if not name.startswith(own)]


METHODS.register("own-eyes", OwnEyes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--images", type=int, default=800)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for method in ("fedavg", "own-eyes"):
            run = fedssl.run(
                method=method,
                shift="rotation",
                partition="iid",
                rounds=options.rounds,
                data={"name": "digits", "limit": options.images},
                probe={"every": 0, "protocol": "none"},
                engine={"threads": 1},  # networks this small are slower on several
                out=Path(folder) / method,
                quiet=True,
            )
            found = run.probe("personal")
            numbers = run.metrics[-1]["bytes_up"] // 4 // len(run.metrics[-1]["clients"])
            print(
                f"{method:<9} {100 * found['accuracy']:5.1f} % on a client's own images "
                f"(untrained {100 * found['untrained']:.1f} %), {numbers:,} numbers uploaded a client"
            )


if __name__ == "__main__":
    main()
