"""MAE (He et al. 2022): a transformer encodes a quarter of the patches, a small decoder predicts the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from fedssl.errors import ConfigError
from fedssl.models.encoders import check_patch
from fedssl.models.model import Model, Part, Role
from fedssl.models.options import ModelConfig
from fedssl.objectives.losses import full_precision
from fedssl.objectives.objective import Objective


class MAE(Objective):
    """Masked auto-encoder: predict the masked patches; mean squared error on these only.

    The decoder is shared between clients like the encoder; its position embedding is fixed.
    """

    couples: ClassVar[str] = ""

    views: ClassVar[str] = "mae"
    num_views: ClassVar[int] = 1

    mask_ratio: float = Field(0.75, gt=0, lt=1, description="share of patches that are masked")
    decoder_width: int = Field(
        192, ge=4, le=16384, multiple_of=4, description="width of the decoder's tokens"
    )
    decoder_depth: int = Field(4, ge=1, le=64, description="blocks of the decoder")
    decoder_heads: int = Field(3, ge=1, le=256, description="attention heads of the decoder")
    normalise_pixels: bool = Field(
        True, description="predict pixels standardized by the mean and deviation of their patch"
    )

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        from timm.models.vision_transformer import Block

        rows, columns = grid_of(encoder, config, "mae")
        width, heads = self.decoder_width, self.decoder_heads
        if width % heads:
            raise ConfigError(
                f"objective.decoder_width={width} must be a multiple of objective.decoder_heads={heads}"
            )
        blocks = [Block(width, heads, qkv_bias=True) for _ in range(self.decoder_depth)]
        decoder = Decoder(features, width, blocks, pixels_of_patch(encoder))
        return Model(
            encoder=Part(encoder),
            decoder=Part(decoder),
            positions=Part(Positions(rows, columns, width), Role.DERIVED),
        )

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        encoder = cast(Any, model.part("encoder"))
        decoder = cast(Decoder, model.part("decoder"))
        positions = cast(Positions, model.part("positions"))
        images = views[0]
        patches = patchify(images, encoder.patch_embed.patch_size)
        visible, hidden = self.split(len(images), patches.shape[1], rng)
        visible, hidden = visible.to(images.device), hidden.to(images.device)
        drawn = decoder(encode(encoder, images, visible), visible, hidden, positions.table)
        return reconstruction(drawn, take(patches, hidden), self.normalise_pixels)

    def split(self, images: int, patches: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw the visible and the masked patches of each image, by splitting a random permutation."""
        count = min(patches - 1, max(1, int(patches * (1 - self.mask_ratio))))
        order = torch.rand(images, patches, generator=rng).argsort(dim=1)
        return order[:, :count], order[:, count:]


class Decoder(nn.Module):
    """Predicts the pixels of masked patches, which enter as a learned token."""

    def __init__(self, features: int, width: int, blocks: Sequence[nn.Module], pixels: int) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.hidden = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, pixels)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, visible: Tensor, hidden: Tensor, positions: Tensor) -> Tensor:
        """Predict the masked patches from the tokens of the visible ones (after any class token)."""
        tokens = self.embed(tokens)
        prefix, seen = tokens[:, : -visible.shape[1]], tokens[:, -visible.shape[1] :]
        canvas = self.hidden.to(tokens.dtype).repeat(len(tokens), len(positions), 1)
        canvas = canvas.scatter(1, visible.unsqueeze(2).expand_as(seen), seen) + positions
        drawn = self.norm(self.blocks(torch.cat([prefix, canvas], dim=1)))[:, prefix.shape[1] :]
        pixels: Tensor = self.head(take(drawn, hidden))
        return pixels


class Positions(nn.Module):
    """Fixed position embedding: sine and cosine of row and column, each a quarter of the width."""

    table: Tensor

    def __init__(self, rows: int, columns: int, width: int) -> None:
        super().__init__()
        frequency = torch.exp(-math.log(10000) * torch.arange(width // 4) / (width // 4))
        row = torch.arange(rows).repeat_interleave(columns).unsqueeze(1) * frequency
        column = torch.arange(columns).repeat(rows).unsqueeze(1) * frequency
        self.register_buffer("table", torch.cat([row.sin(), row.cos(), column.sin(), column.cos()], dim=1))


def grid_of(encoder: Any, config: ModelConfig, objective: str) -> tuple[int, int]:
    """Rows and columns of a transformer's patches; raises a ConfigError unless some of them can be masked."""
    from timm.models.vision_transformer import VisionTransformer

    if not isinstance(encoder, VisionTransformer):
        raise ConfigError(
            f"objective.name={objective} needs a vision transformer, not model.encoder={config.encoder}: "
            "set model.encoder=vit_tiny, or timm:vit_…"
        )
    patches: Any = encoder.patch_embed
    check_patch(patches.patch_size[0], patches.img_size)
    rows, columns = patches.grid_size
    if rows * columns < 2:
        raise ConfigError(
            f"model.patch={config.patch} makes one patch per image, which cannot be masked; lower it"
        )
    return rows, columns


def pixels_of_patch(encoder: Any) -> int:
    """The numbers in a patch, of all channels."""
    count: int = encoder.patch_embed.proj.weight[0].numel()
    return count


def encode(encoder: Any, images: Tensor, visible: Tensor) -> Tensor:
    """Run a timm transformer up to its tokens, on the visible patches only."""
    tokens = encoder._pos_embed(encoder.patch_embed(images))
    prefix = tokens[:, : encoder.num_prefix_tokens]
    seen = take(tokens[:, encoder.num_prefix_tokens :], visible)
    encoded: Tensor = encoder.norm(encoder.blocks(encoder.norm_pre(torch.cat([prefix, seen], dim=1))))
    return encoded


def patchify(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """Reshape images [B, C, H, W] to [B, patches, pixels], row by row as the transformer numbers patches."""
    b, c, h, w = images.shape
    rows, columns = h // patch[0], w // patch[1]
    cut = images.reshape(b, c, rows, patch[0], columns, patch[1])
    return cut.permute(0, 2, 4, 3, 5, 1).reshape(b, rows * columns, -1)


def take(tokens: Tensor, index: Tensor) -> Tensor:
    """`tokens[b, index[b, i]]` for every image b."""
    return tokens.gather(1, index.unsqueeze(2).expand(-1, -1, tokens.shape[2]))


@full_precision
def reconstruction(drawn: Tensor, pixels: Tensor, normalize: bool) -> Tensor:
    """Mean squared error, against standardized patches with `normalize` (MAE §3, reconstruction target)."""
    if normalize:
        variance, mean = torch.var_mean(pixels, dim=2, keepdim=True)
        pixels = (pixels - mean) / (variance + 1e-6).sqrt()
    return (drawn - pixels).square().mean()
