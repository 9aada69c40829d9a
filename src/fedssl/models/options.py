"""Config section `model`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from fedssl.models import ENCODERS
from fedssl.options import Options


class ModelConfig(Options):
    encoder: str = Field(
        "resnet8",
        description="resnet8, resnet18, resnet50, vit_tiny, vit_small, or timm:NAME (not for generative "
        "objectives)",
    )
    width: int = Field(16, ge=1, le=8192, description="channels of the first stage (resnet8/18/50)")
    stem_stride: Literal[1, 2] = Field(1, description="stride of the 3×3 stem (resnet8/18/50)")
    patch: int = Field(4, ge=1, le=1024, description="patch side of a vision transformer")
    stem: Literal["auto", "fine", "original"] = Field(
        "auto",
        description="of timm:NAME. fine: patches of model.patch, or a stem of stride 1; original: as "
        "published; auto: fine below 96 pixels, but original where model.init has weights for it",
    )
    init: str = Field(
        "",
        description="weights to start from: a run's folder, FILE.safetensors, timm (its own, for timm:NAME), "
        "or hf:REPO; empty: random",
    )
    projector: Literal["mlp", "linear"] = Field(
        "mlp", description="mlp: Linear-BN-ReLU-Linear; linear: one layer without projector_hidden"
    )
    norm: Literal["batch", "group"] = Field(
        "batch",
        description="normalization of encoder and heads; group: per image, without running statistics",
    )
    projector_hidden: int = Field(
        256, ge=1, le=1 << 16, description="hidden width of the projector (papers: 4096)"
    )
    projector_out: int = Field(
        128, ge=1, le=1 << 16, description="output width of the projector (papers: 2048)"
    )
    projector_norm: Literal["batch", "none"] = Field(
        "batch", description="normalization of the projector's hidden layer; none: Linear-ReLU-Linear"
    )
    predictor_hidden: int = Field(
        256, ge=1, le=1 << 16, description="hidden width of the predictor (papers: 4096)"
    )

    @field_validator("encoder")
    @classmethod
    def _may_be_loaded(cls, name: str) -> str:
        """Ignore case; a user's function has to be trusted."""
        if ":" in name and not name.startswith("timm:"):
            ENCODERS.check(name)
        return ENCODERS.canonical(name)
