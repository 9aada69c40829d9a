"""MAE: masks, the loss, and a naive implementation of the whole."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedssl.errors import ConfigError
from fedssl.models.encoders import build_encoder
from fedssl.models.model import Model, Role
from fedssl.models.options import ModelConfig
from fedssl.objectives.mae import MAE, Positions, encode, patchify

SMALL = {"decoder_width": 12, "decoder_depth": 1, "decoder_heads": 3}


@pytest.mark.parametrize(("patches", "ratio", "visible"), [(64, 0.75, 16), (256, 0.75, 64), (10, 0.5, 5)])
def test_the_mask_is_exact(patches: int, ratio: float, visible: int, rng: torch.Generator) -> None:
    seen, hidden = MAE(mask_ratio=ratio).split(7, patches, rng)
    assert seen.shape == (7, visible)
    both = torch.cat([seen, hidden], dim=1).sort(dim=1).values
    assert torch.equal(both, torch.arange(patches).expand(7, -1))


@pytest.mark.parametrize("ratio", [0.01, 0.99])
def test_at_least_one_patch_is_visible_and_one_masked(ratio: float, rng: torch.Generator) -> None:
    seen, hidden = MAE(mask_ratio=ratio).split(2, 4, rng)
    assert seen.shape[1] >= 1
    assert hidden.shape[1] >= 1


def test_every_patch_is_masked_equally_often(rng: torch.Generator) -> None:
    _, hidden = MAE().split(4000, 16, rng)
    counts = hidden.flatten().bincount(minlength=16) / 4000
    torch.testing.assert_close(counts, torch.full((16,), 0.75), rtol=0, atol=0.04)


def test_the_mask_comes_from_rng_alone() -> None:
    draws = [MAE().split(3, 16, torch.Generator().manual_seed(seed))[0] for seed in (5, 5, 6)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_patches_are_numbered_row_by_row() -> None:
    image = torch.arange(2 * 4 * 6).reshape(1, 2, 4, 6)
    patches = patchify(image, (2, 3))
    assert patches.shape == (1, 4, 12)
    for number, (top, left) in enumerate([(0, 0), (0, 3), (2, 0), (2, 3)]):
        own = image[0, :, top : top + 2, left : left + 3]
        assert set(patches[0, number].tolist()) == set(own.flatten().tolist())


def test_positions_by_hand() -> None:
    table = Positions(2, 3, 8).table
    assert table.shape == (6, 8)
    row, column = 1, 2  # patch 5
    expected = [
        f(place / 10000**k) for place in (row, column) for f in (math.sin, math.cos) for k in (0, 0.5)
    ]
    torch.testing.assert_close(table[5], torch.tensor(expected))


def test_encoding_all_patches_is_the_encoders_own_pass(
    build: Callable[..., Model], views: list[Tensor]
) -> None:
    encoder = build(MAE(**SMALL), "vit_tiny").part("encoder")
    everything = torch.arange(4).expand(6, -1)
    torch.testing.assert_close(encode(encoder, views[0], everything), encoder.forward_features(views[0]))


def naive(objective: MAE, model: Model, images: Tensor, rng: torch.Generator) -> Tensor:
    """One image and one patch at a time; 8×8 images in four patches of 4×4."""
    encoder, decoder = model.part("encoder"), model.part("decoder")
    seen, hidden = objective.split(len(images), 4, rng)
    corners = [(0, 0), (0, 4), (4, 0), (4, 4)]
    total, count = torch.zeros(()), 0
    for image, visible, masked in zip(images, seen.tolist(), hidden.tolist(), strict=True):
        weight, bias = encoder.patch_embed.proj.weight.flatten(1), encoder.patch_embed.proj.bias
        tokens = []
        for patch in visible:
            top, left = corners[patch]
            pixels = image[:, top : top + 4, left : left + 4].flatten()
            tokens.append(weight @ pixels + bias + encoder.pos_embed[0, patch])
        tokens = decoder.embed(encoder.norm(encoder.blocks(torch.stack(tokens)[None])))[0]
        canvas = [decoder.hidden[0, 0]] * 4
        for place, patch in enumerate(visible):
            canvas[patch] = tokens[place]
        drawn = decoder.norm(decoder.blocks((torch.stack(canvas) + model.part("positions").table)[None]))[0]
        for patch in masked:
            top, left = corners[patch]
            pixels = image[:, top : top + 4, left : left + 4].permute(1, 2, 0).flatten()
            if objective.normalise_pixels:
                pixels = (pixels - pixels.mean()) / (pixels.var() + 1e-6).sqrt()
            total = total + (decoder.head(drawn[patch]) - pixels).square().sum()
            count += len(pixels)
    return total / count


@pytest.mark.parametrize("normalize", [True, False])
def test_against_a_naive_implementation(
    normalize: bool, build: Callable[..., Model], views: list[Tensor]
) -> None:
    objective = MAE(**SMALL, normalise_pixels=normalize, mask_ratio=0.5)
    model = build(objective, "vit_tiny")
    loss, expected = (
        function(model, torch.Generator().manual_seed(9))
        for function in (
            lambda model, rng: objective.loss(model, views[:1], None, rng),
            lambda model, rng: naive(objective, model, views[0], rng),
        )
    )
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)


def test_masked_patches_do_not_affect_the_encoder(
    build: Callable[..., Model], views: list[Tensor], rng: torch.Generator
) -> None:
    encoder = build(MAE(**SMALL), "vit_tiny").part("encoder")
    visible, hidden = MAE().split(6, 4, rng)
    changed = views[0].clone()
    for image, patches in enumerate(hidden.tolist()):
        for patch in patches:
            top, left = 4 * (patch // 2), 4 * (patch % 2)
            changed[image, :, top : top + 4, left : left + 4] = 0
    assert not torch.equal(changed, views[0])
    assert torch.equal(encode(encoder, changed, visible), encode(encoder, views[0], visible))


def test_parts_and_roles(build: Callable[..., Model]) -> None:
    model = build(MAE(**SMALL), "vit_tiny")
    assert {name: role.value for name, role in model.roles.items()} == {
        "encoder": "shared",
        "decoder": "shared",
        "positions": "derived",
    }
    assert model.names(Role.DERIVED) == ["positions.table"]
    assert MAE().num_views == 1


def test_the_papers_size(build: Callable[..., Model]) -> None:
    """Dec-SSL: 192 wide, 12 + 4 layers."""
    model = build(MAE(), "vit_tiny")
    assert len(model.part("encoder").blocks) == 12
    assert len(model.part("decoder").blocks) == 4
    assert model.part("decoder").embed.out_features == 192


def test_a_transformer_with_a_class_token(views: list[Tensor], rng: torch.Generator) -> None:
    config = ModelConfig(encoder="timm:vit_tiny_patch16_224", patch=4)
    made = build_encoder(config, (8, 8), 3)
    objective = MAE(**SMALL)
    model = objective.build(made.module, made.features, config)
    loss = objective.loss(model, views[:1], None, rng)
    loss.backward()
    assert torch.isfinite(loss)
    assert float(made.module.cls_token.grad.abs().sum()) > 0


def test_bad_encoders_and_sizes() -> None:
    with pytest.raises(ConfigError, match=r"not model.encoder=resnet8: set model.encoder=vit_tiny"):
        MAE().build(nn.Flatten(), 4, ModelConfig())
    one_patch = ModelConfig(encoder="vit_tiny", patch=8)
    with pytest.raises(ConfigError, match=r"model.patch=8 makes one patch"):
        MAE().build(build_encoder(one_patch, (8, 8), 3).module, 192, one_patch)
    config = ModelConfig(encoder="vit_tiny", patch=4)
    with pytest.raises(
        ConfigError, match=r"decoder_width=192 must be a multiple of objective.decoder_heads=5"
    ):
        MAE(decoder_heads=5).build(build_encoder(config, (8, 8), 3).module, 192, config)
