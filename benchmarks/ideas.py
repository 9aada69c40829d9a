"""What could make a training step faster than the plain one: each idea against it, in turns.

fedssl keeps memory (`fedssl.allocator`), and `train.compile` and `train.precision` are options; what does not
pay is not in it, and this file shows why. The plain step is SimCLR's with its views: eager, channels-last, an
optimizer over lists of tensors, memory kept.

    python benchmarks/ideas.py [--ideas memory,fused,prefetch,compile,bf16,stacked] [--encoder resnet8]
"""

from __future__ import annotations

import argparse
import copy
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from pacing import in_turns, ratio, repeated
from ratios import Ratio, report
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.optim.sgd import sgd

from fedssl.config import Config, load
from fedssl.data.views import Views
from fedssl.engines.runner import build_network
from fedssl.methods.compiling import compiled_encoders
from fedssl.methods.optimizers import Optimizer
from fedssl.methods.training import autocast
from fedssl.models.heads import projected
from fedssl.models.model import Model
from fedssl.objectives.simclr import nt_xent

STEPS, PIECES = 5, 12  # steps of a piece of work, and pieces


class Step:
    """Views, forward, loss, backward, optimizer."""

    def __init__(self, options: argparse.Namespace, batch: int = 128) -> None:
        settings = {"model.encoder": options.encoder, "model.width": options.width, "train.batch_size": batch}
        self.config: Config = load(None, {"data.name": "digits", "objective": "simclr", **settings})
        network = build_network(self.config, (32, 32), 3, 10)
        self.model: Model = network.model.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        self.parameters = self.config.objective.trained(self.model)
        self.optimizer = Optimizer(self.parameters, self.config.train, self.config.train.lr)
        self.images = torch.randint(0, 256, (batch, 32, 32, 3), dtype=torch.uint8)
        self.make = Views(self.config.views.resolve("simclr"), (32, 32), 3, 0.5, 0.25, 2)
        self.rng = torch.Generator().manual_seed(0)

    def views(self) -> list[Tensor]:
        return self.make(self.images, self.rng)

    def loss(self, views: list[Tensor]) -> Tensor:
        return nt_xent(projected(self.model, torch.cat(views)), 0.5)

    def learn(self, views: list[Tensor]) -> None:
        loss = self.loss(views)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def __call__(self) -> None:
        for _ in range(STEPS):
            self.learn(self.views())


class Compiled(Step):
    """`train.compile`: the encoder through torch.compile, whose backward pass is compiled with it."""

    def __call__(self) -> None:
        with compiled_encoders(self.model):
            super().__call__()


class Narrow(Step):
    """`train.precision=bf16`: products of bfloat16, where the processor has instructions for them."""

    def loss(self, views: list[Tensor]) -> Tensor:
        with autocast(torch.device("cpu"), "bf16"):
            return super().loss(views)


class Fused(Step):
    """PyTorch's fused SGD: one kernel instead of a few over lists."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.momenta: list[Tensor | None] = [None] * len(self.parameters)

    def learn(self, views: list[Tensor]) -> None:
        loss = self.loss(views)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        train = self.config.train
        with torch.no_grad():
            gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
            sgd(list(self.parameters), gradients, self.momenta, fused=True, lr=train.lr,
                weight_decay=train.weight_decay, momentum=train.momentum, dampening=0.0, nesterov=False,
                maximize=False)  # fmt: skip


class Prefetched(Step):
    """The views of the next batch are made in another thread while this one trains."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.pool = ThreadPoolExecutor(1, initializer=lambda: torch.set_num_threads(1))

    def __call__(self) -> None:
        coming = self.pool.submit(self.views)
        for _ in range(STEPS):
            views, coming = coming.result(), self.pool.submit(self.views)
            self.learn(views)
        coming.result()


class OneByOne:
    """Small clients one after the other: the plain way."""

    def __init__(self, options: argparse.Namespace, clients: int, batch: int) -> None:
        self.clients = [Step(options, batch) for _ in range(clients)]

    def __call__(self) -> None:
        for client in self.clients:
            views = client.views()
            for _ in range(STEPS):
                client.learn(views)


class Stacked:
    """The same clients as one model with a leading axis (torch.func): one pass trains all of them.

    Running statistics of BatchNorm are left out, since vmap cannot update them.
    """

    def __init__(self, options: argparse.Namespace, clients: int, batch: int) -> None:
        steps = [Step(options, batch) for _ in range(clients)]
        for step in steps:
            for module in step.model.modules():
                if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                    module.track_running_stats = False
                    module.running_mean = module.running_var = module.num_batches_tracked = None
        parameters, self.buffers = stack_module_state([step.model for step in steps])  # type: ignore[arg-type]
        self.parameters = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        self.shape = copy.deepcopy(steps[0].model).to("meta")
        self.optimizer = Optimizer(list(self.parameters.values()), steps[0].config.train, 0.03)  # type: ignore[arg-type]
        self.images = torch.stack([torch.cat(step.views()) for step in steps])

        def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], images: Tensor) -> Tensor:
            z = functional_call(
                Whole(self.shape), {f"model.{n}": v for n, v in {**parameters, **buffers}.items()}, images
            )
            z = nn.functional.normalize(z, dim=1)
            itself = torch.eye(len(z), dtype=torch.bool)
            logits = (z @ z.T / 0.5).masked_fill(itself, float("-inf"))
            partner = torch.arange(len(z)).roll(len(z) // 2)
            return nn.functional.cross_entropy(logits, partner)

        self.losses = vmap(loss)

    def __call__(self) -> None:
        for _ in range(STEPS):
            loss = self.losses(self.parameters, self.buffers, self.images).sum()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


class Whole(nn.Module):
    """A model as a function of images."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return projected(self.model, images)


def against_plain(options: argparse.Namespace) -> list[Ratio]:
    """Every idea against the plain step, which keeps memory: that idea is its reverse."""
    kinds = {"compile": Compiled, "bf16": Narrow, "fused": Fused, "prefetch": Prefetched}
    plays = {name: repeated(partial(kinds[name], options)) for name in options.ideas if name in kinds}
    if "memory" in options.ideas:
        plays["memory given back"] = repeated(partial(Step, options), kept=False)
    if not plays:
        return []
    seconds = in_turns({"plain": repeated(partial(Step, options)), **plays}, PIECES)
    notes = {"compile": f"{seconds['compile'][0]:.0f} s for the first steps"} if "compile" in plays else {}
    return [
        Ratio(
            f"a step with {name} against the plain one, {options.encoder}",
            ratio(seconds[name], seconds["plain"]),
            note=notes.get(name, ""),
        )
        for name in plays
    ]


def stacked(options: argparse.Namespace) -> list[Ratio]:
    ratios = []
    for clients, batch in ((5, 128), (10, 16)):
        plays = {
            name: repeated(partial(kind, options, clients, batch))
            for name, kind in (("plain", OneByOne), ("stacked", Stacked))
        }
        seconds = in_turns(plays, PIECES)
        what = f"{clients} clients stacked against one by one, batches of {batch}, {options.encoder}"
        ratios.append(Ratio(what, ratio(seconds["stacked"], seconds["plain"])))
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--ideas",
        type=lambda text: text.split(","),
        default=["memory", "fused", "prefetch", "compile", "bf16", "stacked"],
    )
    parser.add_argument("--encoder", default="resnet8")
    parser.add_argument("--width", type=int, default=16)
    options = parser.parse_args()
    report([*against_plain(options), *(stacked(options) if "stacked" in options.ideas else [])])


if __name__ == "__main__":
    main()
