"""Views per second of a whole federated run against a bare step loop on ready-made tensors.

Both train SimCLR on a ResNet-8 (width 16, 32×32×3) with batches of 128 images. The run has five
clients and everything switched on: views, aggregation, client memories, checkpoints, logging. The
bare loop is forward, loss, backward and optimizer step on views that lie ready in memory. The two
take turns, round by round, so that a machine that slows down slows both.

    python benchmarks/throughput.py [--objective simclr] [--rounds 6] [--repeat 3] [--images 1920]
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


class Bare:
    """The step loop alone, on views that lie ready in memory."""

    def __init__(self, config: Config) -> None:
        network = build_network(config, (32, 32), 3, 10)
        self.config = config
        self.model = network.model.to(memory_format=torch.channels_last).train()
        trained = config.objective.trained(self.model)
        self.optimizer = Optimizer(trained, config.train, config.train.lr)
        shape = (config.train.batch_size, 3, 32, 32)
        self.views = [
            torch.randn(shape).contiguous(memory_format=torch.channels_last)
            for _ in range(config.objective.num_views)
        ]
        self.rng = torch.Generator().manual_seed(0)

    def run(self, steps: int) -> int:
        """Makes steps; the number of views they took."""
        objective = self.config.objective
        for _ in range(steps):
            loss = objective.loss(self.model, self.views, None, self.rng)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            objective.after_step(self.model)
        return steps * len(self.views) * self.config.train.batch_size


class TakingTurns(Listener):
    """Times a run, and after each of its rounds as many bare steps, which do not count as the run's."""

    def __init__(self, bare: Bare, steps: int) -> None:
        self.bare, self.steps = bare, steps
        self.run_seconds = self.bare_seconds = 0.0
        self.run_views = self.bare_views = 0

    def started(self, info: RunInfo) -> None:
        self.began = time.perf_counter()

    def round(self, line: dict[str, Any]) -> None:
        paused = time.perf_counter()
        self.run_seconds += paused - self.began
        self.run_views += line["views"]
        self.bare_views += self.bare.run(self.steps)
        self.began = time.perf_counter()
        self.bare_seconds += self.began - paused

    def finished(self, result: dict[str, Any], path: Path) -> None:
        self.run_seconds += time.perf_counter() - self.began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--objective", default="simclr")
    parser.add_argument("--encoder", default="resnet8")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--images", type=int, default=1920)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = make_config(options, folder)
        torch.set_num_threads(config.engine.threads)
        bare = Bare(config)
        bare.run(3)
        ratios = []
        for attempt in range(options.repeat):
            turns = TakingTurns(bare, options.images // 5 // options.batch * 5)
            run(config, folder / f"run-{attempt}", turns)
            limit, reached = turns.bare_views / turns.bare_seconds, turns.run_views / turns.run_seconds
            ratios.append(reached / limit)
            print(f"bare {limit:8,.0f} views/s   fedssl {reached:8,.0f} views/s   ratio {ratios[-1]:.3f}")
    print(
        f"median ratio {statistics.median(ratios):.3f} ({config.engine.threads} threads, {options.objective})"
    )


if __name__ == "__main__":
    main()
