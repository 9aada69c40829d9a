"""The base classes of attacks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from fedssl.data.federation import ClientImages
from fedssl.methods.client import Client
from fedssl.options import Choice
from fedssl.rng import numpy_rng
from fedssl.state import State, Upload
from fedssl.vectors import flat, square

NAME = "simulated attack (see `fedssl list attacks`)"


@dataclass(frozen=True)
class Knowledge:
    """What the attackers of a round know.

    Attributes:
        sent: the global model that all clients received.
        honest: the uploads of the other clients; the attackers' own if there are no others.
        statistics: names of running statistics of normalization layers.
        clients: number of clients in the round, attackers included.
        attackers: number of attackers among them.
        reach: the largest distance from the global model that the server does not refuse.
        weight: the largest number of images that a client can count for.
        leader: images of one of the attackers, the same in every round.
    """

    sent: State
    honest: Sequence[Upload]
    statistics: frozenset[str]
    clients: int
    attackers: int
    reach: float
    weight: int
    leader: ClientImages

    @property
    def parameters(self) -> list[str]:
        """Names of the floating tensors that are not statistics."""
        return [
            name
            for name, value in self.sent.items()
            if value.is_floating_point() and name not in self.statistics
        ]

    def updates(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The honest updates of tensors, stacked along the first axis."""
        return {
            name: torch.stack([upload.state[name] for upload in self.honest]) - self.sent[name]
            for name in names
        }

    def mean(self, names: Iterable[str]) -> State:
        """The mean honest update."""
        return {name: update.mean(dim=0) for name, update in self.updates(names).items()}


class Attack(Choice):
    """No attack: all clients are honest."""

    name: str = Field("none", description=NAME)

    def attackers(self, seed: int, clients: int) -> frozenset[int]:
        """The clients that attack."""
        return frozenset()

    def forge(self, own: Upload, known: Knowledge, client: Client) -> Upload:
        """The upload that an attacker sends.

        Args:
            own: its honest upload.
            known: what the attackers of the round know.
            client: the attacker, with a model that it may use and its images.
        """
        return own


class Poison(Attack):
    """A share of the clients attacks in every round that they take part in."""

    share: float = Field(0.2, gt=0, lt=1, description="share of the clients that attack, rounded")

    def attackers(self, seed: int, clients: int) -> frozenset[int]:
        return frozenset(order(seed, clients)[: round(self.share * clients)])


def order(seed: int, clients: int) -> list[int]:
    """The order in which clients become attackers: with a larger share, those of the smaller one stay."""
    return [int(client) for client in numpy_rng(seed, "attack").permutation(clients)]


def moved(own: Upload, sent: State, update: State) -> Upload:
    """An upload with these updates of the global model; all other tensors are those of `own`."""
    changed = {name: sent[name] + change.to(sent[name].dtype) for name, change in update.items()}
    return Upload(own.client, {**own.state, **changed}, own.num_samples, own.loss, dict(own.values))


def norm(update: State) -> float:
    """The L2 norm over all tensors."""
    return math.sqrt(sum(square(flat(value)) for value in update.values()))
