"""Small models whose numbers can be worked out on paper."""

from __future__ import annotations

import copy

import torch
from torch import nn

from fedssl.methods.client import Client
from fedssl.models.model import Model, Part, Role
from fedssl.state import Upload, snapshot


class Vector(nn.Module):
    """A module that is one parameter and one statistic."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(values))
        self.norm = nn.BatchNorm1d(1, affine=False)


class Pair(nn.Module):
    """A target network: copies of an encoder and a projector."""

    def __init__(self, encoder: nn.Module, projector: nn.Module) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(encoder)
        self.projector = copy.deepcopy(projector)


class Queue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2))


def byol_like() -> Model:
    """Encoder (2 numbers), projector (1), predictor (1), a private target and a private queue."""
    encoder, projector = Vector(0.0, 0.0), Vector(0.0)
    return Model(
        encoder=Part(encoder),
        projector=Part(projector),
        predictor=Part(Vector(0.0)),
        target=Part(Pair(encoder, projector), Role.PRIVATE, copy_of=("encoder", "projector")),
        queue=Part(Queue(), Role.PRIVATE),
    )


def a_client(model: Model, id: int = 0, round: int = 1) -> Client:
    """A client that receives and remembers, but has no images to train on."""
    return Client(
        id=id,
        round=round,
        rounds=10,
        seed=0,
        model=model,
        objective=None,  # type: ignore[arg-type]
        images=None,  # type: ignore[arg-type]
        views=None,  # type: ignore[arg-type]
        config=None,  # type: ignore[arg-type]
        device=torch.device("cpu"),
        initial=snapshot(model),
    )


def upload_of(client: int, state: dict[str, torch.Tensor], num_samples: int = 1) -> Upload:
    return Upload(client, {name: value.clone() for name, value in state.items()}, num_samples)
