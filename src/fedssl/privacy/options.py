"""Config section `privacy`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from fedssl.options import Options

# The modes in which a key has an effect.
USED_WITH = {
    "noise": ("client", "example"),
    "clip": ("client", "example"),
    "epsilon": ("client", "example"),
    "delta": ("client", "example"),
    "random": ("client", "example"),
    "quantile": ("client",),
}


class PrivacyConfig(Options):
    mode: Literal["none", "client", "example"] = Field(
        "none",
        description="what the noise hides: nothing, a whole client, or a single image",
    )
    noise: float = Field(
        0.0, ge=0, description="noise multiplier z: standard deviation of the noise, in units of clip"
    )
    clip: float = Field(
        1.0,
        gt=0,
        description="largest L2 norm: of a client's update, or of an image's gradient (example)",
    )
    quantile: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="client: clip follows this quantile of the norms (the cost is counted); 0: it is fixed",
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="δ of the (ε, δ) guarantee; less than 1 ÷ clients")
    epsilon: float = Field(
        0.0, ge=0, description="budget: the run stops before ε would exceed it; 0: no budget"
    )
    random: Literal["auto", "seed", "secret"] = Field(
        "auto",
        description="where noise and sampling come from: the seed (repeatable, but anyone with the seed "
        "can remove the noise) or a random secret of this run; auto: secret at sites, else seed",
    )
    secure: bool = Field(
        False,
        description="secure aggregation: the server sees sums of masked uploads, but no individual upload",
    )
    threshold: float = Field(
        0.66,
        gt=0.5,
        le=1,
        description="secure: share of a round's clients that must stay to the end; fewer cannot unmask",
    )
    bits: Literal[32, 64] = Field(
        64, description="secure: bits of a masked number; 32 halves the traffic and is coarser"
    )
    bound: float = Field(
        16.0,
        gt=0,
        description="secure: largest change of a parameter in a round; clients beyond it are left out",
    )

    canaries: int = Field(
        0,
        ge=0,
        le=1 << 20,
        description="extra clients with random updates, half of which take part, for `fedssl audit`; they "
        "cost accuracy",
    )

    @field_validator("noise", "clip", "epsilon", "delta", "random", "quantile")
    @classmethod
    def _has_effect(cls, value: object, info: ValidationInfo) -> object:
        key, mode = str(info.field_name), info.data.get("mode", "none")
        if value != cls.model_fields[key].default and mode not in USED_WITH[key]:
            raise ValueError(f"has no effect with privacy.mode={mode}: {USED_WITH[key][0]} uses it")
        return value

    @field_validator("threshold", "bits", "bound")
    @classmethod
    def _needs_secure(cls, value: object, info: ValidationInfo) -> object:
        key = str(info.field_name)
        if value != cls.model_fields[key].default and not info.data.get("secure"):
            raise ValueError("has no effect without privacy.secure=true")
        return value

    @property
    def by_client(self) -> bool:
        """Whether whole clients are hidden."""
        return self.mode == "client"

    @property
    def by_example(self) -> bool:
        """Whether single images are hidden."""
        return self.mode == "example"

    @property
    def on(self) -> bool:
        """Whether uploads are changed before they are aggregated."""
        return self.secure or self.by_client
