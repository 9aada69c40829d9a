"""Weights of one encoder in another: names, channels, patches and positions, against timm's own loading."""

from __future__ import annotations

import pytest
import timm
import torch
from timm.models._manipulate import adapt_input_conv
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import nn

from fedssl.errors import ConfigError
from fedssl.models.fit import fit_channels, fitted

VIT = {"num_classes": 0, "embed_dim": 16, "depth": 1, "num_heads": 2, "patch_size": 8, "img_size": 32}


def vit(**changes: object) -> nn.Module:
    module: nn.Module = timm.create_model("vit_tiny_patch16_224", **{**VIT, **changes})
    return module


def test_a_file_with_a_prefix_and_a_classifier_loads_as_it_is() -> None:
    source = timm.create_model("resnet10t", num_classes=3, channels=(8, 8, 8, 8), stem_width=4)
    target = timm.create_model("resnet10t", num_classes=0, channels=(8, 8, 8, 8), stem_width=4)
    given = {f"module.{name}": value for name, value in source.state_dict().items()}
    state, notes = fitted(given, target)
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in state.items())
    assert state.keys() == target.state_dict().keys()
    assert notes == ["2 tensors are not the encoder's, ignored: fc.weight, fc.bias"]


@pytest.mark.parametrize("channels", [1, 2, 5, 16])
def test_channels_are_fitted_as_timm_does_it(channels: int) -> None:
    weight = torch.randn(4, 3, 3, 3)
    torch.testing.assert_close(fit_channels(weight, channels), adapt_input_conv(channels, weight))


def test_a_gray_image_equals_its_three_channel_version() -> None:
    source, target = vit().eval(), vit(in_chans=1).eval()
    state, notes = fitted(source.state_dict(), target)
    target.load_state_dict(state)
    gray = torch.randn(2, 1, 32, 32)
    torch.testing.assert_close(target(gray), source(gray.repeat(1, 3, 1, 1)), atol=1e-5, rtol=1e-4)
    assert notes == ["patch_embed.proj.weight: 3 channels to 1"]


@pytest.mark.parametrize(
    "changes", [{"img_size": 48}, {"img_size": (32, 48), "patch_size": 4}, {"patch_size": 16}]
)
def test_patches_and_positions_are_fitted_as_timm_does_it(changes: dict[str, object]) -> None:
    source, target = vit(), vit(**changes)
    state, notes = fitted(source.state_dict(), target)
    expected = checkpoint_filter_fn(dict(source.state_dict()), target)
    assert notes
    for name, value in state.items():
        torch.testing.assert_close(value, expected[name])


def test_class_tokens_that_the_encoder_lacks_are_left_out() -> None:
    source, target = vit(), vit(class_token=False, global_pool="avg", fc_norm=False)
    state, notes = fitted(source.state_dict(), target)
    assert torch.equal(state["pos_embed"], source.state_dict()["pos_embed"][:, 1:])
    assert "1 tensors are not the encoder's, ignored: cls_token" in notes
    assert "pos_embed: 17 positions to 16" in notes


def test_weights_in_their_authors_names_go_through_timm_s_conversion() -> None:
    source = vit()
    authors = {f"state.{name}": value for name, value in source.state_dict().items()}
    authors["state.blocks.0.mlp.w12.weight"] = torch.zeros(2, 2)  # DINOv2's SwiGLU: not this encoder's
    state, notes = fitted(authors, vit())
    assert torch.equal(state["pos_embed"], source.state_dict()["pos_embed"])
    assert "mlp.w12" in notes[0]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"a": torch.zeros(1)}, r"2 of 2 tensors are missing there: 0\.weight, 0\.bias"),
        (
            {"0.weight": torch.zeros(3, 5), "0.bias": torch.zeros(3)},
            r"1 of 2 tensors fit: 0\.weight is 3×5 there and 3×2 here",
        ),
    ],
)
def test_misfitting_tensors_are_named(state: dict[str, torch.Tensor], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        fitted(state, nn.Sequential(nn.Linear(2, 3)))
