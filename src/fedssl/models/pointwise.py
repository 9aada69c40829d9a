"""Strided 1×1 convolutions of few channels without oneDNN's backward pass, which corrupts memory."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

FEW = 16  # channels


class Pointwise(nn.Conv2d):
    """A strided 1×1 convolution, computed on every other pixel: same results, same state."""

    def forward(self, input: Tensor) -> Tensor:
        down, across = self.stride
        return F.conv2d(input[:, :, ::down, ::across], self.weight, self.bias)


def replace_narrow_strides(network: nn.Module) -> None:
    """Replace strided 1×1 convolutions before a network is trained.

    With fewer than 16 channels-last channels the gradient of such a convolution is wrong, or the process
    ends: on CPUs with AVX2 at any size, with AVX-512 from maps of 32×32 on (seen with PyTorch 2.15).
    """
    for module in network.modules():
        if type(module) is nn.Conv2d and _strided_pointwise(module) and module.in_channels < FEW:
            module.__class__ = Pointwise


def _strided_pointwise(conv: nn.Conv2d) -> bool:
    plain = conv.groups == 1 and conv.padding == (0, 0)
    return plain and conv.kernel_size == (1, 1) and conv.stride != (1, 1)
