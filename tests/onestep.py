"""Two clients with eight images, one step per round: the setting for naive reference implementations."""

import copy

import torch
from torch import nn

from fedssl.config import load
from fedssl.data.federation import federate
from fedssl.engines.memory import MemoryStore
from fedssl.engines.network import build_network
from fedssl.engines.runner import ClientRunner
from fedssl.engines.tasks import Task
from fedssl.rng import torch_rng
from fedssl.state import Broadcast
from tests.small import SMALL

LR, DECAY, TEMPERATURE = 0.1, 0.01, 0.5

# Two clients of eight images each; one epoch is one step.
TOY = {
    "data.limit": 16,
    "partition": {"scheme": "iid", "clients": 2},
    "train.batch_size": 8,
    "train.lr": LR,
    "train.weight_decay": DECAY,
    "rounds": 4,
}

METHODS = {
    "fedprox": {"name": "fedprox", "mu": 0.7},
    "fedper": {"name": "fedper"},
    "fedrep": {"name": "fedrep"},
    "ditto": {"name": "ditto", "mu": 0.7},
    "apfl": {"name": "apfl", "alpha": 0.3},
    "fedstyle": {"name": "fedstyle", "style_epochs": 1, "infusion": 0.7, "generator_hidden": 16},
}
PRIVATE = {
    "fedprox": (),
    "fedper": ("projector.",),
    "fedrep": ("projector.",),
    "ditto": ("personal.",),
    "apfl": ("personal.",),
    "fedstyle": ("style.", "generator."),
}


class Federation:
    """A runner with its memories, driven round by round by hand."""

    def __init__(self, folder, method, **keys):
        self.config = load(SMALL, {**TOY, "method": method, **keys})
        federation = federate(self.config)
        images = federation.train
        self.network = build_network(self.config, images.size, images.channels, len(images.classes))
        self.memories = MemoryStore(folder, 16)
        self.runner = ClientRunner(self.config, federation, self.network, self.memories)
        self.first = {
            name: self.network.initial[name] for name in self.config.method.shares(self.runner.model)
        }

    def task(self, client, model=None, round=1, memory_round=0):
        return Task(round, client, Broadcast(model or self.first), memory_round)

    def run(self, *args, **keys):
        outcome = self.runner.run(self.task(*args, **keys))
        assert not outcome.failure
        return outcome.upload.state

    def naive(self):
        """A model with the same initial values, to be trained without fedssl."""
        model = copy.deepcopy(self.runner.model)
        model.load_state_dict(self.network.initial)
        return model.train()

    def views(self, client, purpose="train", round=1):
        """The views of the single step of a phase."""
        order, draws = (
            torch_rng(self.config.seed, round, client, f"{purpose}/{what}") for what in ("order", "views")
        )
        images, _ = self.runner.federation.images_of(client, self.config).batch(
            torch.randperm(8, generator=order)
        )
        return images, self.runner.views(images, draws)


def nt_xent(z1, z2, temperature=TEMPERATURE):
    """SimCLR's loss, row by row."""
    z = nn.functional.normalize(torch.cat((z1, z2)), dim=1)
    total = 0.0
    for i in range(len(z)):
        others = [torch.dot(z[i], z[j]) / temperature for j in range(len(z)) if j != i]
        partner = torch.dot(z[i], z[(i + len(z1)) % len(z)]) / temperature
        total = total + torch.logsumexp(torch.stack(others), 0) - partner
    return total / len(z)


def projections(model, views):
    return model.part("projector")(model.part("encoder")(torch.cat(views))).chunk(2)


def descend(loss, modules, lr=LR):
    """One step of plain SGD; momentum has no effect on the first step."""
    parameters = [value for module in modules for value in module.parameters()]
    gradients = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        for value, gradient in zip(parameters, gradients, strict=True):
            value -= lr * (gradient + DECAY * value)


def naive_style_loss(z, temperature):
    """Eq. 2 with B−1 positives, averaged over rows."""
    z = [row / row.norm() for row in z]
    half, total = len(z) // 2, 0.0
    for i in range(len(z)):
        others = [n for n in range(len(z)) if n != i]
        below = sum(torch.exp(z[i] @ z[n] / temperature) for n in others)
        same = [j for j in others if (j < half) == (i < half)]
        assert len(same) == half - 1
        total += sum(-torch.log(torch.exp(z[i] @ z[j] / temperature) / below) for j in same) / len(same)
    return total / len(z)


def assert_close(found, expected, rtol=1e-4, atol=1e-6):
    """Compare the tensors of two states by name."""
    for name, tensor in found.items():
        if tensor.is_floating_point():
            where = f"{name} is off"
            torch.testing.assert_close(tensor, expected[name], rtol=rtol, atol=atol, msg=where)
