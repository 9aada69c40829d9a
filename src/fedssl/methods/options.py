"""Config section `train`: local training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedssl.options import Options


class TrainConfig(Options):
    epochs: float = Field(2.0, gt=0, le=1e06, description="local epochs per round (E); a fraction is allowed")
    batch_size: int = Field(32, ge=2, le=1 << 24, description="images per step (B)")
    lr: float = Field(0.05, gt=0, description="initial learning rate")
    optimizer: Literal["sgd", "adam", "adamw"] = Field(
        "sgd", description="optimizer; its state is reset in every round"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(5e-4, ge=0, description="L2 penalty on all trained parameters")
    schedule: Literal["cosine", "constant", "step"] = Field(
        "cosine",
        description="learning rate schedule; cosine: over rounds; step: ×gamma at milestones, also within "
        "rounds",
    )
    round_decay: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of the learning rate that is lost within every round, along a cosine; 0: the rate "
        "changes between rounds only",
    )
    freeze: int = Field(
        0,
        ge=0,
        le=1024,
        description="number of frozen stages of the encoder: 1 is the stem (or embedding), 2 also the first "
        "stage (or block)",
    )
    lora: int = Field(
        0,
        ge=0,
        le=16384,
        description="rank of LoRA adapters, the only part of the encoder that is trained and sent; 0: no "
        "adapters",
    )
    lora_scale: float = Field(1.0, gt=0, description="factor of an adapter's B·A (α / rank)")
    lora_mean: Literal["freeze-a", "product"] = Field(
        "freeze-a",
        description="freeze-a: A is fixed at random, and B is averaged; product: both are trained, and the "
        "mean of B·A is factored again",
    )
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="learning rate of an encoder block as a multiple of the next block's",
    )
    milestones: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(
        (0.6, 0.8), description="step: milestones, as shares of all local epochs"
    )
    gamma: float = Field(0.1, gt=0, le=1, description="step: factor of the learning rate at every milestone")
    clip: float = Field(0.0, ge=0, description="largest gradient norm; 0: no clipping")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto",
        description="auto: bf16 on CUDA, else fp32; on CPUs, bf16 is only faster with AVX-512 BF16 or AMX",
    )
    compile: bool = Field(
        False,
        description="compile encoders with torch.compile: steps are faster after up to a minute, and round "
        "differently",
    )
