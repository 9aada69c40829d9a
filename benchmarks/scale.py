"""The server's cost of one client in a round: bytes each way, and time to read, check and add its upload.

    python benchmarks/scale.py [--repeats 5]

docs/scale.md estimates the needs of large federations from these numbers.
"""

from __future__ import annotations

import argparse
import statistics
import time

from fedssl.aggregation import build
from fedssl.config import load
from fedssl.engines import wire
from fedssl.engines.check import problem_with
from fedssl.engines.network import build_network
from fedssl.methods.boundary import Boundary
from fedssl.state import Upload

MODELS = {
    "ResNet-8, width 16, SimCLR": {"model.encoder": "resnet8", "model.width": 16},
    "ResNet-18, width 64, SimCLR": {"model.encoder": "resnet18", "model.width": 64},
    "ResNet-50, width 64, SimCLR": {"model.encoder": "resnet50", "model.width": 64},
}
UPLOADS = 4  # added in a row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(
        "| model | MB each way | in 16 bits | s to read | s to check | s to add |\n|---|---|---|---|---|---|"
    )
    for name, keys in MODELS.items():
        config = load({}, keys)
        network = build_network(config, (32, 32), 3, 0)
        travels = Boundary.of(config.method, network.model).travels
        state = {key: network.initial[key] for key in travels}
        sizes = [wire.num_bytes(state, dtype) / 1e6 for dtype in ("float32", "float16")]
        data = wire.pack(state, "float32")
        seconds = [once(data, state, len(data)) for _ in range(options.repeats)]
        read, check, add = (statistics.median(column) for column in zip(*seconds, strict=True))
        print(
            f"| {name} | {sizes[0]:.2f} | {sizes[1]:.2f} | {read:.4f} | {check:.4f} | {add:.4f} |", flush=True
        )


def once(data: bytes, state: dict[str, object], longest: int) -> tuple[float, float, float]:
    """Seconds on one core to read, to check and to add one upload."""
    began = time.process_time()
    uploads = [Upload(client, wire.unpack(data, longest), 10, 0.5) for client in range(UPLOADS)]
    read = time.process_time()
    problems = [problem_with(upload, state) for upload in uploads]  # type: ignore[arg-type]
    check = time.process_time()
    assert not any(problems)
    build("fedavg")(state, uploads)  # type: ignore[arg-type]
    end = time.process_time()
    return (read - began) / UPLOADS, (check - read) / UPLOADS, (end - check) / UPLOADS


if __name__ == "__main__":
    main()
