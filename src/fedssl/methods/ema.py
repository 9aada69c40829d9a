"""Mixtures of the global model and the client's own: the base of FedEMA, FedU and constant-mu."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field
from torch import nn

from fedssl.methods.client import Client
from fedssl.methods.method import ENCODER, Method
from fedssl.methods.training import Training
from fedssl.models.model import Model, Role
from fedssl.state import State, distance, mix, snapshot


class OwnModel(Method):
    """A method whose clients remember the model they uploaded last, and how far they have drifted."""

    divergence: Literal["paper", "reference-code"] = Field(
        "paper",
        description="paper: ‖W_g − W_k‖ over all encoder parameters; reference-code: mean norm of the change "
        "of convolutions (without shortcuts) in the client's own training, as in the authors' code",
    )

    def keeps(self, model: Model) -> list[str]:
        derived = set(model.names(Role.DERIVED))
        return [name for name in model.state_dict() if name not in derived]

    def train(self, client: Client) -> Training:
        client.notes["round"] = client.round
        if self.divergence == "paper":
            return super().train(client)
        before = snapshot(client.model, convolutions(client.model))
        training = super().train(client)
        client.notes["drift"] = mean_change(before, client.model.state_dict())
        return training

    def measure(self, client: Client, received: State, memory: State) -> float:
        """The distance of the client's last model from the global one, by the chosen definition."""
        if self.divergence == "reference-code":
            return client.notes["drift"]
        return distance(received, memory, client.model.parameters_under(ENCODER))


def trained_last_round(client: Client) -> bool:
    """Whether the client took part in the previous round (FedEMA, Algorithm 1, line 13)."""
    return client.notes.get("round") == client.round - 1


def start_from_global(client: Client, received: State, memory: State) -> None:
    """Online network, target and predictor ← global; other private tensors (a queue) are kept (line 14)."""
    replaced = received.keys() | client.model.sources().keys()
    client.start_from(received, {name: own for name, own in memory.items() if name not in replaced})


def start_mixed(
    client: Client,
    received: State,
    memory: State,
    rates: Iterable[tuple[tuple[str, ...], float]],
) -> None:
    """W ← μ·own + (1−μ)·global for the parameters of parts, each with its μ (Eq. 1 and 2).

    BatchNorm's statistics are not parameters: they come from the global model.
    """
    start = {**memory, **received}
    for parts, mu in rates:
        names = client.model.parameters_under(parts)
        start |= mix({name: memory[name] for name in names}, {name: received[name] for name in names}, mu)
    client.start_from(start)


def convolutions(model: Model) -> list[str]:
    """Weights of the encoder's convolutions that the authors' code measures.

    It looks for `conv` in the names of parameters, which leaves out the shortcuts (`downsample.0`) of a
    ResNet. An encoder without such names is measured by all its convolutions.
    """
    encoder = model.part("encoder")
    paths = [path for path, module in encoder.named_modules() if isinstance(module, nn.Conv2d)]
    named = [path for path in paths if "conv" in path]
    return [f"encoder.{path}.weight" for path in named or paths]


def mean_change(before: State, after: State) -> float:
    """The mean over tensors of the norm of their change."""
    return mean(distance(before, after, [name]) for name in before)


def mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0
