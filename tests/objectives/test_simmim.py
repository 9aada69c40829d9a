"""SimMIM: masks, the loss, and a naive implementation of the whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedssl.errors import ConfigError
from fedssl.models.encoders import build_encoder
from fedssl.models.model import Model
from fedssl.models.options import ModelConfig
from fedssl.objectives.simmim import SimMIM, encode_masked

CORNERS = [(0, 0), (0, 4), (4, 0), (4, 4)]  # of the four patches of an image of 8×8


@pytest.mark.parametrize(("ratio", "masked"), [(0.5, 8), (0.6, 10), (0.01, 1), (0.99, 15)])
def test_every_image_has_the_same_number_of_masked_patches(
    ratio: float, masked: int, rng: torch.Generator
) -> None:
    hidden = SimMIM(mask_ratio=ratio).mask(50, (4, 4), rng)
    assert hidden.shape == (50, 16)
    assert set(hidden.sum(dim=1).tolist()) == {masked}
    assert len({tuple(row) for row in hidden.tolist()}) > 10


def test_masked_squares_are_whole(rng: torch.Generator) -> None:
    hidden = SimMIM(mask_ratio=0.5, mask_side=2).mask(20, (4, 6), rng).reshape(20, 4, 6)
    for image in hidden.tolist():
        squares = [
            {image[row + r][column + c] for r in (0, 1) for c in (0, 1)}
            for row in (0, 2)
            for column in (0, 2, 4)
        ]
        assert all(len(square) == 1 for square in squares)
        assert sum(next(iter(square)) for square in squares) == 3


def test_the_mask_comes_from_rng_alone() -> None:
    draws = [SimMIM().mask(3, (4, 4), torch.Generator().manual_seed(seed)) for seed in (5, 5, 6)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_without_a_mask_it_is_the_encoders_own_pass(build: Callable[..., Model], views: list[Tensor]) -> None:
    encoder = build(SimMIM(), "vit_tiny").part("encoder")
    nothing = torch.zeros(6, 4, dtype=torch.bool)
    found = encode_masked(encoder, views[0], nothing, torch.ones(1, 1, 192))
    torch.testing.assert_close(found, encoder.forward_features(views[0]))


def test_masked_patches_do_not_affect_the_output(build: Callable[..., Model], views: list[Tensor]) -> None:
    encoder = build(SimMIM(), "vit_tiny").part("encoder")
    hidden = SimMIM().mask(6, (2, 2), torch.Generator().manual_seed(1))
    changed = views[0].clone()
    for image, patches in enumerate(hidden.tolist()):
        for (top, left), masked in zip(CORNERS, patches, strict=True):
            if masked:
                changed[image, :, top : top + 4, left : left + 4] = 0
    token = torch.ones(1, 1, 192)
    assert not torch.equal(changed, views[0])
    assert torch.equal(
        encode_masked(encoder, changed, hidden, token), encode_masked(encoder, views[0], hidden, token)
    )


def naive(objective: SimMIM, model: Model, images: Tensor, rng: torch.Generator) -> Tensor:
    """One image and one patch at a time."""
    encoder, decoder = model.part("encoder"), model.part("decoder")
    weight, bias = encoder.patch_embed.proj.weight.flatten(1), encoder.patch_embed.proj.bias
    total, count = torch.zeros(()), 0
    for image, masked in zip(images, objective.mask(len(images), (2, 2), rng).tolist(), strict=True):
        cut = [image[:, top : top + 4, left : left + 4] for top, left in CORNERS]
        tokens = [
            (decoder.hidden[0, 0] if masked[place] else weight @ patch.flatten() + bias)
            + encoder.pos_embed[0, place]
            for place, patch in enumerate(cut)
        ]
        seen = encoder.norm(encoder.blocks(torch.stack(tokens)[None]))[0]
        for place, patch in enumerate(cut):
            if masked[place]:
                pixels = patch.permute(1, 2, 0).flatten()
                total = total + (decoder.head(seen[place]) - pixels).abs().sum()
                count += len(pixels)
    return total / count


def test_against_a_naive_implementation(build: Callable[..., Model], views: list[Tensor]) -> None:
    objective = SimMIM(mask_ratio=0.5)
    model = build(objective, "vit_tiny")
    with torch.no_grad():
        model.part("decoder").hidden.normal_()
    loss = objective.loss(model, views[:1], None, torch.Generator().manual_seed(9))
    expected = naive(objective, model, views[0], torch.Generator().manual_seed(9))
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)


def test_a_transformer_with_a_class_token(views: list[Tensor], rng: torch.Generator) -> None:
    config = ModelConfig(encoder="timm:vit_tiny_patch16_224", patch=4)
    made = build_encoder(config, (8, 8), 3)
    objective = SimMIM()
    loss = objective.loss(objective.build(made.module, made.features, config), views[:1], None, rng)
    loss.backward()
    assert torch.isfinite(loss)
    assert float(made.module.cls_token.grad.abs().sum()) > 0


@pytest.mark.parametrize("side", [2, 3])
def test_invalid_mask_sizes(side: int) -> None:
    config = ModelConfig(encoder="vit_tiny", patch=4)
    made = build_encoder(config, (8, 8), 3)
    with pytest.raises(ConfigError, match=rf"mask_side={side} does not divide the grid of 2×2"):
        SimMIM(mask_side=side).build(made.module, made.features, config)
    with pytest.raises(ConfigError, match=r"objective.name=simmim needs a vision transformer"):
        SimMIM().build(nn.Flatten(), 4, ModelConfig())
