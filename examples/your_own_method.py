"""Write a method: clients keep the first layers of the encoder private.

Each client's digits are rotated by a different angle. The method shares all of the encoder except its first
layers. It is compared with FedAvg; each client is probed on its own rotated images. (With one seed it shows
no gain; the example is about the API.)

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


class PrivateStem(FedAvg):
    """FedAvg with client-specific first layers."""

    evaluates: ClassVar[Literal["global", "cluster", "personal"]] = "personal"

    layers: tuple[str, ...] = Field(
        ("conv1", "bn1"), description="layers of the encoder that stay on the client"
    )

    def shares(self, model: Model) -> list[str]:
        own = tuple(f"encoder.{layer}." for layer in self.layers)
        return [name for name in super().shares(model) if not name.startswith(own)]


METHODS.register("private-stem", PrivateStem)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--images", type=int, default=800)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for method in ("fedavg", "private-stem"):
            run = fedssl.run(
                method=method,
                shift="rotation",
                partition="iid",
                rounds=options.rounds,
                data={"name": "digits", "limit": options.images},
                probe={"every": 0, "protocol": "none"},
                engine={"threads": 1},  # small networks are slower with several threads
                out=Path(folder) / method,
                quiet=True,
            )
            found = run.probe("personal")
            numbers = run.metrics[-1]["bytes_up"] // 4 // len(run.metrics[-1]["clients"])
            print(
                f"{method:<12} {100 * found['accuracy']:5.1f} % on a client's own images "
                f"(untrained {100 * found['untrained']:.1f} %), {numbers:,} numbers uploaded a client"
            )


if __name__ == "__main__":
    main()
