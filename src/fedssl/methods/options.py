"""Config section `train`: local training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fedssl.options import Options


class TrainConfig(Options):
    epochs: float = Field(2.0, gt=0, description="local epochs per round (E); a fraction is allowed")
    batch_size: int = Field(32, ge=2, description="images per step (B)")
    lr: float = Field(0.05, gt=0, description="learning rate of the first round")
    optimizer: Literal["sgd", "adam", "adamw"] = Field("sgd", description="fresh in every round")
    momentum: float = Field(0.9, ge=0, lt=1, description="of SGD")
    weight_decay: float = Field(5e-4, ge=0, description="L2 penalty on all trained parameters")
    schedule: Literal["cosine", "constant", "step"] = Field(
        "cosine",
        description="learning rate: cosine over rounds; step: ×gamma at milestones, also within rounds",
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
        description="first stages of the encoder that stay as they are: 1 is the stem (or embedding), 2 the "
        "first stage (or block) too",
    )
    lora: int = Field(
        0,
        ge=0,
        description="rank of LoRA adapters, all that is trained and sent of the encoder; 0: no adapters",
    )
    lora_scale: float = Field(1.0, gt=0, description="what B·A of an adapter is multiplied by (α / rank)")
    lora_mean: Literal["freeze-a", "product"] = Field(
        "freeze-a",
        description="freeze-a: A stays as drawn, and B is averaged; product: both are trained, and the mean "
        "of B·A is factored again",
    )
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="the learning rate of a block of the encoder is so many times the next one's",
    )
    milestones: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(
        (0.6, 0.8), description="step: shares of all local epochs after which the rate is multiplied by gamma"
    )
    gamma: float = Field(0.1, gt=0, le=1, description="step: factor of the rate at every milestone")
    clip: float = Field(0.0, ge=0, description="largest gradient norm; 0: no limit")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto",
        description="auto: bf16 on CUDA, else fp32; bf16 pays on CPUs that multiply it (AVX-512 BF16, AMX)",
    )
    compile: bool = Field(
        False,
        description="encoders through torch.compile: faster steps after up to a minute, other rounding",
    )
