"""DINO (Caron et al. 2021): the student predicts which prototypes a slow teacher assigns to other crops.

The teacher sees two large crops, the student also small ones. Sharp assignments alone would collapse to one
prototype; subtracting a running mean of the teacher's outputs (centering) prevents this. Each client has its
own teacher and center.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

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

LARGE = 2  # crops that the teacher sees


class Prototypes(nn.Module):
    """Cosines with learned unit vectors: a linear layer whose rows have length 1."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, width) * 0.02)

    def forward(self, z: Tensor) -> Tensor:
        return F.linear(F.normalize(z, dim=1), F.normalize(self.weight, dim=1))


class Center(nn.Module):
    """The running mean of the teacher's outputs."""

    value: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("value", torch.zeros(width))

    @torch.no_grad()
    def move(self, outputs: Tensor, momentum: float) -> None:
        """c ← m·c + (1−m)·mean of outputs [views, batch, width] (Eq. 4)."""
        self.value.lerp_(outputs.float().mean(dim=(0, 1)), 1 - momentum)


class DINO(Objective):
    """DINO: predict a slow teacher's prototypes, from crops of several sizes (Eq. 3)."""

    views: ClassVar[str] = "dino"

    local_views: int = Field(
        4, ge=0, le=64, description="number of small crops, in addition to 2 large ones (paper: 8)"
    )
    prototypes: int = Field(1024, ge=2, le=1 << 20, description="outputs K (paper: 65536)")
    student_temperature: float = Field(0.1, gt=0, description="divides the student's outputs")
    teacher_temperature: float = Field(0.04, gt=0, description="divides the teacher's centered outputs")
    center_momentum: float = Field(0.9, ge=0, le=1, description="m of the center, per batch")
    momentum: float = Field(0.99, ge=0, le=1, description="m of the teacher's moving average, per batch")

    @property
    def num_views(self) -> int:  # type: ignore[override]
        return LARGE + self.local_views

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        accept_any_size(encoder)
        head = build_projector(features, config)
        projector = nn.Sequential(head, Prototypes(config.projector_out, self.prototypes))
        return Model(
            encoder=Part(encoder),
            projector=Part(projector),
            target=target_part(encoder, projector),
            center=Part(Center(self.prototypes), Role.PRIVATE),
        )

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        center = cast(Center, model.part("center"))
        students = torch.stack([project(model, view) for view in views])
        with torch.no_grad():
            teachers = torch.stack([model.part("target")(view) for view in views[:LARGE]])
        value = self_distillation(
            students, teachers, center.value, self.student_temperature, self.teacher_temperature
        )
        if model.training:
            center.move(teachers, self.center_momentum)
        return value

    def after_step(self, model: Model) -> None:
        follow(model, self.momentum)


@full_precision
def self_distillation(
    students: Tensor, teachers: Tensor, center: Tensor, student_temperature: float, teacher_temperature: float
) -> Tensor:
    """Mean cross-entropy over all pairs of different crops (Eq. 3).

    Args:
        students: outputs [crops, batch, prototypes]; the first crops are the teacher's.
        teachers: outputs [large crops, batch, prototypes].
        center: subtracted from the teacher's outputs.
        student_temperature: divides the student's outputs.
        teacher_temperature: divides the teacher's.

    Returns:
        −Σ p_t(x)·log p_s(x'), averaged over images and pairs x ≠ x'.
    """
    wanted = F.softmax((teachers - center) / teacher_temperature, dim=2)
    found = F.log_softmax(students / student_temperature, dim=2)
    pairs = -torch.einsum("tbk,sbk->ts", wanted, found) / students.shape[1]
    others = pairs.numel() - min(pairs.shape)
    return (pairs.sum() - pairs.diagonal().sum()) / others


def accept_any_size(encoder: Any) -> None:
    """Let a timm transformer accept crops of any size by interpolating its position embeddings."""
    patches = getattr(encoder, "patch_embed", None)
    if patches is None or getattr(encoder, "dynamic_img_size", True):
        return
    from timm.layers import Format

    encoder.dynamic_img_size = True
    patches.strict_img_size, patches.flatten, patches.output_fmt = False, False, Format.NHWC
