"""What a method sees of the client it works for."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from fedssl.data.federation import ClientImages
from fedssl.data.views import Views
from fedssl.methods.options import TrainConfig
from fedssl.models.model import Model
from fedssl.objectives.objective import Objective
from fedssl.rng import torch_rng
from fedssl.state import State, restore


class ClientFailure(Exception):
    """One client cannot take part in this round; its text says why. The round goes on without it."""


@dataclass
class Client:
    """One client in one round: its images, the model it trains, and its random numbers."""

    id: int
    round: int
    rounds: int
    seed: int
    model: Model
    objective: Objective
    images: ClientImages
    views: Views
    config: TrainConfig
    device: torch.device
    initial: State  # the model as it was before round 1, the same for every client
    deadline: float = field(default=float("inf"))
    notes: dict[str, float] = field(default_factory=dict)  # a method's own numbers from step to step
    received: State = field(default_factory=dict)  # the global model that this round began from

    def rng(self, purpose: str) -> torch.Generator:
        return torch_rng(self.seed, self.round, self.id, purpose)

    def start_from(self, broadcast: State, memory: State) -> None:
        """Load the broadcast, then the client's own tensors, and give every other tensor its first value.

        A tensor of a copied part (a target network) that is in neither begins as a copy of what it
        copies, not of what the model was trained with last: that was another client.
        """
        self.received = broadcast
        given = {**broadcast, **memory}
        sources = self.model.sources()
        rest = {}
        for name, value in self.initial.items():
            if name not in given:
                source = name
                while source in sources and source not in given:
                    source = sources[source]
                rest[name] = given.get(source, value)
        restore(self.model, {**given, **rest})

    def check_deadline(self) -> None:
        if time.monotonic() > self.deadline:
            raise ClientFailure("too late: not finished within participation.timeout")
