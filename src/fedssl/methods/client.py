"""The client's side of a round, as methods see it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedssl.data.federation import ClientImages
from fedssl.data.views import Views
from fedssl.methods.options import TrainConfig
from fedssl.models.model import Model
from fedssl.objectives.objective import Objective
from fedssl.rng import torch_rng
from fedssl.state import State, restore


class ClientFailure(Exception):
    """One client cannot take part in this round; the message says why. The round continues without it."""


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
    uploads: frozenset[str] = frozenset()  # names of the tensors that leave the client
    notes: dict[str, float] = field(default_factory=dict)  # numbers that it keeps from round to round
    received: State = field(default_factory=dict)  # the model it was sent; set by the runner before training

    def rng(self, purpose: str) -> torch.Generator:
        return torch_rng(self.seed, self.round, self.id, purpose)

    def start_from(self, state: Mapping[str, Tensor], own: Mapping[str, Tensor] | None = None) -> None:
        """Load tensors into the model, and reset all others to their initial values.

        The model still holds the tensors of the client that was trained before, so none may be left as it
        is. A missing tensor of a copied part (a target network) starts as a copy of its source.

        Args:
            state: tensors by name, for example the global model or a mixture of it and the client's own.
            own: tensors that take precedence over `state`, for example the client's memory.
        """
        given = {**state, **(own or {})}
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
            raise ClientFailure("timed out: not finished within participation.timeout")
