"""MoCo v1 and v2 (He et al. 2020; Chen et al. 2020): contrast a query with the keys in a queue.

Each client keeps its own queue from round to round. There is no shuffled BatchNorm, since a client trains on
one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.models.heads import build_projector, project
from fedssl.models.model import Model, Part, Role
from fedssl.models.options import ModelConfig
from fedssl.objectives.losses import full_precision
from fedssl.objectives.objective import Objective
from fedssl.objectives.target import follow, target_part


class Queue(nn.Module):
    """A ring buffer of unit vectors, initially random."""

    keys: Tensor
    position: Tensor

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.register_buffer("keys", F.normalize(torch.randn(length, width), dim=1))
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def push(self, keys: Tensor) -> None:
        """Overwrite the oldest keys; a batch may be larger than the queue."""
        length, count = len(self.keys), len(keys)
        last = keys[-length:]
        start = self.position + count - len(last)
        places = (start + torch.arange(len(last), device=keys.device)) % length
        self.keys.index_copy_(0, places, last)
        self.position.copy_((self.position + count) % length)


class MoCo(Objective):
    """Base class of both versions: queries are first views, keys are second views through the target."""

    couples: ClassVar[str] = "compares images with a queue of earlier ones"

    temperature: float = Field(0.2, gt=0, description="divides cosine similarities")
    momentum: float = Field(0.99, ge=0, le=1, description="m of the target's moving average, per batch")
    queue: int = Field(
        1024, ge=1, le=1 << 24, description="number of keys in a client's queue (papers: 4096 to 65536)"
    )

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        projector = self.build_projector(features, config)
        return Model(
            encoder=Part(encoder),
            projector=Part(projector),
            target=target_part(encoder, projector),
            queue=Part(Queue(self.queue, config.projector_out), Role.PRIVATE),
        )

    def build_projector(self, features: int, config: ModelConfig) -> nn.Module:
        return build_projector(features, config)

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        queue = cast(Queue, model.part("queue"))
        query = project(model, views[0])
        with torch.no_grad():
            key = F.normalize(model.part("target")(views[1]).float(), dim=1)
        # Autograd keeps a reference to the queue, which changes below.
        value = info_nce(query, key, queue.keys.clone(), self.temperature)
        if model.training:
            queue.push(key)
        return value

    def after_step(self, model: Model) -> None:
        follow(model, self.momentum)


class MoCoV1(MoCo):
    """MoCo v1: contrast with a queue of keys; linear projector, weaker views, temperature 0.07."""

    views: ClassVar[str] = "moco-v1"
    temperature: float = Field(0.07, gt=0, description="divides cosine similarities")

    def build_projector(self, features: int, config: ModelConfig) -> nn.Module:
        return nn.Linear(features, config.projector_out)


class MoCoV2(MoCo):
    """MoCo v2: contrast with a queue of keys; MLP projector, SimCLR's views, temperature 0.2."""


@full_precision
def info_nce(query: Tensor, key: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of finding the key among it and the negatives, all unit vectors (MoCo, Eq. 1)."""
    query = F.normalize(query, dim=1)
    positive = (query * key).sum(dim=1, keepdim=True)
    logits = torch.cat([positive, query @ negatives.T], dim=1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(query), dtype=torch.int64, device=query.device))
