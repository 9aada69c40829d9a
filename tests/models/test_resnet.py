"""Our ResNets equal those of timm and torchvision, in tensor names and function."""

from __future__ import annotations

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from fedssl.models.encoders import build_encoder
from fedssl.models.options import ModelConfig
from fedssl.models.pointwise import Pointwise


def cifar_stem(module: nn.Module) -> nn.Module:
    """The papers' changes to a published ResNet for 32×32 images."""
    module.conv1 = nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
    module.maxpool = nn.Identity()
    module.fc = nn.Identity()
    return module


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_width_64_is_the_published_network_with_another_stem(name: str, library: str) -> None:
    ours = build_encoder(ModelConfig(encoder=name, width=64), (16, 16), 3).module
    create = timm.create_model if library == "timm" else torchvision.models.get_model
    theirs = cifar_stem(create(name))
    theirs.load_state_dict(ours.state_dict())  # strict: the same names and shapes
    x = torch.randn(3, 3, 16, 16)
    for mode in (True, False):
        torch.testing.assert_close(ours.train(mode)(x), theirs.train(mode)(x), rtol=1e-5, atol=1e-5)
    for (name_a, a), (name_b, b) in zip(ours.named_buffers(), theirs.named_buffers(), strict=True):
        assert name_a == name_b
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "features", "sides"),
    [("resnet8", 32, (4, 2)), ("resnet18", 64, (2, 1)), ("resnet50", 256, (2, 1))],
)
def test_widths_and_strides(name: str, features: int, sides: tuple[int, int]) -> None:
    for stride, side in zip((1, 2), sides, strict=True):
        encoder = build_encoder(ModelConfig(encoder=name, width=8, stem_stride=stride), (16, 16), 1)
        x = torch.zeros(2, 1, 16, 16)
        assert encoder.features == features
        assert encoder.module(x).shape == (2, features)
        assert encoder.module.forward_features(x).shape == (2, features, side, side)


def test_resnet8_by_hand() -> None:
    """One convolution and BatchNorm after the other, with torch's functions only."""
    module = build_encoder(ModelConfig(width=4), (8, 8), 3).module.eval()
    weights = module.state_dict()

    def norm(x: Tensor, name: str) -> Tensor:
        scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
        x = (x - weights[f"{name}.running_mean"].view(-1, 1, 1)) / (
            weights[f"{name}.running_var"].view(-1, 1, 1) + 1e-5
        ).sqrt()
        return x * scale.view(-1, 1, 1) + shift.view(-1, 1, 1)

    for value in weights.values():  # statistics and scales that matter
        if value.dtype.is_floating_point and value.ndim == 1:
            value.copy_(torch.rand_like(value) + 0.5)
    x = torch.randn(2, 3, 8, 8)
    expected = norm(torch.conv2d(x, weights["conv1.weight"], padding=1), "bn1").relu()
    for stage in (1, 2, 3):
        block, stride = f"layer{stage}.0", 1 if stage == 1 else 2
        out = torch.conv2d(expected, weights[f"{block}.conv1.weight"], stride=stride, padding=1)
        out = torch.conv2d(norm(out, f"{block}.bn1").relu(), weights[f"{block}.conv2.weight"], padding=1)
        if stage > 1:
            expected = torch.conv2d(expected, weights[f"{block}.downsample.0.weight"], stride=2)
            expected = norm(expected, f"{block}.downsample.1")
        expected = (norm(out, f"{block}.bn2") + expected).relu()
    torch.testing.assert_close(module(x), expected.mean(dim=(2, 3)), rtol=1e-4, atol=1e-4)


def test_first_weights_have_he_et_al_s_deviation() -> None:
    module = build_encoder(ModelConfig(encoder="resnet18", width=32), (8, 8), 3).module
    weight = module.layer3[1].conv2.weight.detach()
    assert float(weight.std()) == pytest.approx((2 / (9 * weight.shape[0])) ** 0.5, rel=0.02)
    assert float(weight.mean()) == pytest.approx(0, abs=1e-3)


def test_no_strided_shortcut_is_narrow() -> None:
    module = build_encoder(ModelConfig(width=8), (8, 8), 3).module
    assert [type(getattr(module, name)[0].downsample[0]) for name in ("layer2", "layer3")] == [
        Pointwise,
        nn.Conv2d,
    ]
