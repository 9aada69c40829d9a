"""The global model as a moving average with the client's own: what FedEMA, FedU and constant-μ share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from fedssl.methods.client import Client
from fedssl.methods.method import ENCODER, Method
from fedssl.methods.training import Training
from fedssl.models.model import Model, Role
from fedssl.state import ClientMemory, State, distance, snapshot


class OwnModel(Method):
    """A method whose clients remember the model they uploaded last, and how far they have drifted."""

    divergence: Literal["paper", "reference-code"] = Field(
        "paper",
        description="paper: ‖W_g − W_k‖ over all encoder parameters; reference-code: mean norm of the change "
        "of convolution weights in the client's own training, as the authors' code has it",
    )

    def remembered(self, model: Model) -> list[str]:
        derived = set(model.names(Role.DERIVED))
        return [name for name in model.state_dict() if name not in derived]

    def train(self, client: Client) -> Training:
        if self.divergence == "paper":
            return super().train(client)
        before = snapshot(client.model, convolutions(client.model))
        training = super().train(client)
        client.notes["drift"] = mean_change(before, client.model.state_dict())
        return training

    def remember(self, client: Client, memory: ClientMemory) -> dict[str, float]:
        return {**memory.values, **client.notes, "round": client.round}

    def measure(self, client: Client, broadcast: State, memory: ClientMemory) -> float:
        """How far the client's last model is from the global one, in the chosen reading."""
        if self.divergence == "reference-code":
            return memory.values["drift"]
        return distance(broadcast, memory.state, client.model.parameters_under(ENCODER))


def was_there(client: Client, memory: ClientMemory) -> bool:
    """Whether the client took part in the round before (FedEMA, Algorithm 1, line 13)."""
    return memory.values.get("round") == client.round - 1


def start_afresh(client: Client, broadcast: State, memory: ClientMemory) -> None:
    """Online network, target and predictor ← global; what else is private (a queue) stays (line 14)."""
    replaced = broadcast.keys() | client.model.sources().keys()
    client.start_from(broadcast, {name: own for name, own in memory.state.items() if name not in replaced})


def start_mixed(
    client: Client,
    broadcast: State,
    memory: ClientMemory,
    rates: Iterable[tuple[tuple[str, ...], float]],
) -> None:
    """W ← μ·own + (1−μ)·global for the parameters of parts, each with its μ (Eq. 1 and 2).

    Statistics of BatchNorm are no parameters: they come from the global model.
    """
    mixed = dict(broadcast)
    for parts, mu in rates:
        for name in client.model.parameters_under(parts):
            mixed[name] = mix(memory.state[name], broadcast[name], mu)
    private = {name: own for name, own in memory.state.items() if name not in broadcast}
    client.start_from(mixed, private)
    client.received = broadcast


def mix(own: Tensor, received: Tensor, mu: float) -> Tensor:
    """μ·own + (1−μ)·received, exact at both ends."""
    if mu in (0.0, 1.0) or own is received:  # what stays on the client is received from itself
        return own if mu else received
    return mu * own + (1 - mu) * received


def convolutions(model: Model) -> list[str]:
    """Weights of the encoder's convolutions, found by module type."""
    encoder = model.part("encoder")
    paths = [path for path, module in encoder.named_modules() if isinstance(module, nn.Conv2d)]
    return [f"encoder.{path}.weight" for path in paths]


def mean_change(before: State, after: State) -> float:
    """The mean over tensors of the norm of their change."""
    return mean(distance(before, after, [name]) for name in before)


def mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0
