"""Views per second of a whole federated run against a bare step loop on ready-made tensors.

Both train the same network (32×32×3) with equal batches. The run has several clients and everything enabled:
views, target networks, aggregation, client memories, checkpoints, logging. The bare loop is forward
(including the target network's), loss, backward, optimizer step and target update on ready-made views in
memory, with freed memory kept. The two take turns.

    python benchmarks/throughput.py [--objectives simclr] [--encoders resnet8:16] [--batch 128] [--clients 5]
                                    [--steps 6] [--rounds 5] [--set train.precision=bf16]

`--set` changes keys of the run, but not of the bare loop.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

import torch
from pacing import config_of, in_turns, random_images, ratio, repeated, whole_run
from ratios import Ratio, report
from torch import Tensor

from fedssl.config import Config, parse_overrides
from fedssl.engines.network import build_network
from fedssl.methods.optimizers import Optimizer

OBJECTIVES = "simclr,moco-v2,simsiam,byol,barlow-twins"


class Bare:
    """The step loop alone, on ready-made views in memory."""

    def __init__(self, config: Config, steps: int) -> None:
        self.config, self.steps = config, steps
        torch.set_num_threads(config.engine.threads)
        self.model = (
            build_network(config, (32, 32), 3, 10).model.to(memory_format=torch.channels_last).train()
        )  # type: ignore[call-overload]
        self.optimizer = Optimizer(config.objective.trained(self.model), config.train, config.train.lr)
        shape = (config.train.batch_size, 3, 32, 32)
        self.views = [
            torch.randn(shape).contiguous(memory_format=torch.channels_last)
            for _ in range(config.objective.num_views)
        ]
        self.rng = torch.Generator().manual_seed(0)

    def __call__(self) -> None:
        objective = self.config.objective
        for _ in range(self.steps):
            loss = self.loss()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            objective.after_step(self.model)

    def loss(self) -> Tensor:
        return self.config.objective.loss(self.model, self.views, None, self.rng)


def measure(options: argparse.Namespace, objective: str, encoder: str, width: int, folder: Path) -> Ratio:
    steps = options.clients * options.steps
    images = steps * options.batch
    settings = {
        "model.encoder": encoder,
        "model.width": width,
        "train.batch_size": options.batch,
        "partition.clients": options.clients,
        "objective": objective,
    }
    file = random_images(folder, images)
    config, changed = config_of(file, **settings), config_of(file, **settings, **parse_overrides(options.set))
    run = whole_run(changed, folder / f"{objective}-{encoder}")
    seconds = in_turns({"bare": repeated(partial(Bare, config, steps)), "run": run}, options.rounds)
    views = images * config.objective.num_views
    return Ratio(
        f"{' '.join([objective, *options.set])}, {encoder} width {width}, "
        f"{options.clients} × {options.steps} steps of {options.batch}",
        ratio(seconds["bare"], seconds["run"]),
        least=None if options.set else 0.95,
        note=f"{views / min(seconds['run']):,.0f} of {views / min(seconds['bare']):,.0f} views/s",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--objectives", default=OBJECTIVES)
    parser.add_argument("--encoders", default="resnet8:16,resnet18:64", help="with their widths")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6, help="of one client in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--set", nargs="*", default=[], help="keys of the run, as KEY=VALUE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        report(
            measure(options, objective, encoder, int(width), Path(temporary))
            for encoder, _, width in (word.partition(":") for word in options.encoders.split(","))
            for objective in options.objectives.split(",")
        )


if __name__ == "__main__":
    main()
