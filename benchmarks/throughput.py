"""Views per second of a whole federated run against a bare step loop on ready-made tensors.

Both train SimCLR on a ResNet-8 (width 16, 32×32×3) with batches of 128 images. The run has five
clients and everything switched on: views, aggregation, client memories, checkpoints, logging. The
bare loop is forward, loss, backward and optimizer step on views that lie ready in memory. The two
take turns, so that a machine that slows down slows both.

    python benchmarks/throughput.py [--objective simclr] [--rounds 4] [--repeat 3] [--images 1280]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedssl.config import Config, load
from fedssl.engines.runner import build_network
from fedssl.experiment import run, settled
from fedssl.methods.optimizers import Optimizer
from fedssl.report.listener import Listener, RunInfo


def make_config(options: argparse.Namespace, folder: Path) -> Config:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (options.images, 32, 32, 3), dtype=np.uint8)
    np.savez(folder / "random.npz", x=images)
    return settled(
        load(
            None,
            {
                "data.name": "npz",
                "data.root": str(folder / "random.npz"),
                "partition": "iid",
                "partition.clients": 5,
                "model.encoder": options.encoder,
                "model.width": options.width,
                "objective": options.objective,
                "train.batch_size": options.batch,
                "rounds": options.rounds,
                "checkpoint.every": 1,
            },
        )
    )


def bare(config: Config, steps: int) -> float:
    """Views per second of the step loop alone."""
    torch.set_num_threads(config.engine.threads)
    network = build_network(config, (32, 32), 3, 10)
    model = network.model.to(memory_format=torch.channels_last).train()
    optimizer = Optimizer(config.objective.trained(model), config.train, config.train.lr)
    views = [
        torch.randn(config.train.batch_size, 3, 32, 32).contiguous(memory_format=torch.channels_last)
        for _ in range(config.objective.num_views)
    ]
    rng = torch.Generator().manual_seed(0)
    began = time.perf_counter()
    for _ in range(steps):
        loss = config.objective.loss(model, views, None, rng)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        config.objective.after_step(model)
    return steps * len(views) * config.train.batch_size / (time.perf_counter() - began)


class Clock(Listener):
    """Takes the time from the first broadcast until the encoder is written."""

    def started(self, info: RunInfo) -> None:
        self.began = time.perf_counter()

    def finished(self, result: dict[str, Any], path: Path) -> None:
        self.seconds = time.perf_counter() - self.began


def federated(config: Config, folder: Path) -> float:
    """Views per second of a whole run, checkpoints, logs and the written encoder included."""
    clock = Clock()
    lines = run(config, folder, clock).metrics()
    return sum(line["views"] for line in lines) / clock.seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--objective", default="simclr")
    parser.add_argument("--encoder", default="resnet8")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--images", type=int, default=1280)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = make_config(options, folder)
        steps = options.rounds * (options.images // 5 // options.batch) * 5
        bare(config, 3)
        ratios = []
        for attempt in range(options.repeat):
            limit = bare(config, steps)
            reached = federated(config, folder / f"run-{attempt}")
            ratios.append(reached / limit)
            print(
                f"bare {limit:8,.0f} views/s   fedssl {reached:8,.0f} views/s   ratio {reached / limit:.3f}"
            )
    print(
        f"median ratio {statistics.median(ratios):.3f} ({config.engine.threads} threads, {options.objective})"
    )


if __name__ == "__main__":
    main()
