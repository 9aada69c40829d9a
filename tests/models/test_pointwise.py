"""Strided 1×1 convolutions with few channels: same outputs, and correct gradients on any processor."""

from __future__ import annotations

import pytest
import torch
from timm.layers import create_conv2d
from torch import nn

from fedssl.models.pointwise import Pointwise, replace_narrow_strides


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("side", [7, 8, 64])
@pytest.mark.parametrize("stride", [2, (3, 1)])
def test_gradients_are_those_in_double_precision(
    side: int, stride: int | tuple[int, int], bias: bool
) -> None:
    conv = nn.Conv2d(4, 8, 1, stride, bias=bias)
    exact = nn.Conv2d(4, 8, 1, stride, bias=bias).double()  # oneDNN has no doubles: another implementation
    exact.load_state_dict(conv.state_dict())
    replace_narrow_strides(conv)
    x = torch.randn(8, 4, side, side).to(memory_format=torch.channels_last).requires_grad_()
    y = x.detach().double().requires_grad_()
    for _ in range(3):  # wrong gradients were not wrong every time
        for network, images in ((conv, x), (exact, y)):
            network.zero_grad()
            images.grad = None
            network(images).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad.float())
        for ours, theirs in zip(conv.parameters(), exact.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad.float(), rtol=1e-4, atol=1e-3)  # long sums


@pytest.mark.parametrize(
    ("conv", "replaced"),
    [
        (nn.Conv2d(4, 8, 1, 2), True),
        (nn.Conv2d(15, 8, 1, 2), True),
        (nn.Conv2d(16, 8, 1, 2), False),
        (nn.Conv2d(4, 8, 1), False),
        (nn.Conv2d(4, 8, 3, 2), False),
        (nn.Conv2d(4, 8, 1, 2, padding=1), False),
        (nn.Conv2d(4, 8, 1, 2, groups=2), False),
        (create_conv2d(4, 8, 1, stride=2, padding="same"), False),  # a different class, with another forward
    ],
)
def test_nothing_else_is_replaced(conv: nn.Conv2d, replaced: bool) -> None:
    network = nn.Sequential(nn.Sequential(conv))
    names = list(network.state_dict())
    x = torch.randn(2, conv.in_channels, 8, 8)
    before = network(x)
    replace_narrow_strides(network)
    assert isinstance(conv, Pointwise) == replaced
    assert list(network.state_dict()) == names
    torch.testing.assert_close(network(x), before)
