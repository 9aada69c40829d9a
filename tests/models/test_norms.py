"""Group normalization: images do not depend on each other, and timm rebuilds the same encoder."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from tests.small import small_run
from torch import nn

from fedssl.errors import ConfigError
from fedssl.models.encoders import build_encoder
from fedssl.models.heads import mlp
from fedssl.models.norms import num_groups
from fedssl.models.options import ModelConfig
from fedssl.models.rebuild import rebuild


@pytest.mark.parametrize(("channels", "groups"), [(4, 1), (12, 3), (16, 4), (64, 16), (256, 32), (130, 26)])
def test_groups_divide_channels(channels: int, groups: int) -> None:
    assert num_groups(channels) == groups


@pytest.mark.parametrize("name", ["resnet8", "timm:resnet10t"])
def test_an_image_does_not_depend_on_its_batch(name: str) -> None:
    encoder = build_encoder(ModelConfig(encoder=name, width=8, norm="group"), (16, 16), 1)
    assert not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in encoder.module.modules())
    images = torch.randn(4, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    module = encoder.module.train()
    together = module(images)
    torch.testing.assert_close(module(images[1:2]), together[1:2], rtol=1e-4, atol=1e-5)
    again = rebuild(encoder.description)
    again.load_state_dict(module.state_dict())
    torch.testing.assert_close(again.eval()(images), module.eval()(images))


def test_heads_too() -> None:
    head = mlp(8, 16, 4, "group")
    assert type(head[1]) is nn.GroupNorm
    assert type(mlp(8, 16, 4)[1]) is nn.BatchNorm1d


def test_a_layer_that_does_more_than_normalize_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.norm=group: .*BatchNormAct2d, which cannot be replaced"):
        build_encoder(ModelConfig(encoder="timm:mobilenetv3_small_050", norm="group"), (32, 32), 3)


def test_a_run_has_no_statistics(tmp_path) -> None:
    run = small_run(tmp_path / "run", rounds=1, **{"model.norm": "group"})
    assert not any("running" in name for name in load_file(run.path / "encoder.safetensors"))
    assert run.encoder(torch.zeros(2, 1, 8, 8)).shape == (2, 16)
