"""SimMIM (Xie et al. 2022): masked patches enter a transformer as a token, a linear layer predicts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from fedssl.errors import ConfigError
from fedssl.models.model import Model, Part
from fedssl.models.options import ModelConfig
from fedssl.objectives.losses import full_precision
from fedssl.objectives.mae import grid_of, patchify, pixels_of_patch
from fedssl.objectives.objective import Objective


class SimMIM(Objective):
    """Masked image modeling: predict the pixels of masked patches with one linear layer; L1 loss.

    Unlike with MAE, the encoder sees the whole grid: masked patches enter as a learned token.
    """

    couples: ClassVar[str] = ""

    views: ClassVar[str] = "mae"
    num_views: ClassVar[int] = 1

    mask_ratio: float = Field(0.6, gt=0, lt=1, description="share of squares that are masked")
    mask_side: int = Field(
        1, ge=1, description="side of the squares that are masked, in patches (paper: 32 pixels of 192)"
    )

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        rows, columns = grid_of(encoder, config, "simmim")
        if rows % self.mask_side or columns % self.mask_side or self.mask_side >= max(rows, columns):
            raise ConfigError(
                f"objective.mask_side={self.mask_side} does not divide the grid of {rows}×{columns} patches "
                "into squares"
            )
        return Model(encoder=Part(encoder), decoder=Part(Pixels(features, pixels_of_patch(encoder))))

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        encoder = cast(Any, model.part("encoder"))
        decoder = cast(Pixels, model.part("decoder"))
        images = views[0]
        hidden = self.mask(len(images), encoder.patch_embed.grid_size, rng).to(images.device)
        drawn = decoder.head(encode_masked(encoder, images, hidden, decoder.hidden))
        return masked_l1(drawn, patchify(images, encoder.patch_embed.patch_size), hidden)

    def mask(self, images: int, grid: tuple[int, int], rng: torch.Generator) -> Tensor:
        """Draw which patches of each image are masked: [images, patches], the same number in each."""
        side = self.mask_side
        rows, columns = grid[0] // side, grid[1] // side
        count = min(rows * columns - 1, max(1, round(rows * columns * self.mask_ratio)))
        order = torch.rand(images, rows * columns, generator=rng).argsort(dim=1)
        squares = (order.argsort(dim=1) < count).reshape(images, rows, columns)
        return squares.repeat_interleave(side, 1).repeat_interleave(side, 2).flatten(1)


class Pixels(nn.Module):
    """The token of masked patches, and a linear layer from tokens to the pixels of their patches."""

    def __init__(self, features: int, pixels: int) -> None:
        super().__init__()
        self.hidden = nn.Parameter(torch.randn(1, 1, features) * 0.02)
        self.head = nn.Linear(features, pixels)


def encode_masked(encoder: Any, images: Tensor, hidden: Tensor, token: Tensor) -> Tensor:
    """Run a timm transformer with `token` in place of the `hidden` patches, up to the tokens."""
    patches = encoder.patch_embed(images)
    seen = torch.where(hidden.unsqueeze(2), token.to(patches.dtype), patches)
    encoded: Tensor = encoder.norm(encoder.blocks(encoder.norm_pre(encoder._pos_embed(seen))))
    return encoded[:, encoder.num_prefix_tokens :]


@full_precision
def masked_l1(drawn: Tensor, pixels: Tensor, hidden: Tensor) -> Tensor:
    """Mean absolute error over the pixels of masked patches (§3.4)."""
    errors = (drawn - pixels).abs().mean(dim=2)
    return (errors * hidden).sum() / hidden.sum()
