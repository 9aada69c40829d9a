"""Layers of the GANs: spectrally normalized for discriminators, equalized for the style map."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEPS = 20  # power iterations in evaluation mode


class _Spectral(nn.Module):
    """A weight divided by its largest singular value (Miyato et al. 2018).

    Each training pass makes one step of power iteration from the last pass's vector `u`. PyTorch's
    `spectral_norm` reuses `u` in evaluation mode. Here `u` stays with the client, so a global network has
    no matching vector, and evaluation runs enough steps to converge from any start.
    """

    weight: Tensor
    u: Tensor

    def _add_vector(self) -> None:
        self.register_buffer("u", F.normalize(torch.randn(self.weight.shape[0]), dim=0))

    def normalized_weight(self) -> Tensor:
        matrix = self.weight.flatten(1)
        with torch.no_grad():
            left = self.u
            for _ in range(1 if self.training else STEPS):
                right = F.normalize(matrix.T @ left, dim=0)
                left = F.normalize(matrix @ right, dim=0)
            if self.training:
                self.u.copy_(left)
        return self.weight / torch.dot(left, matrix @ right)


class SpectralConv(nn.Conv2d, _Spectral):
    """A convolution of an odd kernel that keeps the size of the image."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__(inputs, outputs, kernel, padding=kernel // 2)
        nn.init.xavier_uniform_(self.weight)
        self._add_vector()

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.normalized_weight(), self.bias, padding=self.padding)


class SpectralLinear(nn.Linear, _Spectral):
    """A linear layer."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(inputs, outputs, bias)
        nn.init.xavier_uniform_(self.weight)
        self._add_vector()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.normalized_weight(), self.bias)


class SpectralEmbedding(nn.Embedding, _Spectral):
    """A vector for each label."""

    def __init__(self, labels: int, width: int) -> None:
        super().__init__(labels, width)
        nn.init.xavier_uniform_(self.weight)
        self._add_vector()

    def forward(self, labels: Tensor) -> Tensor:
        return F.embedding(labels, self.normalized_weight())


class EqualLinear(nn.Module):
    """A linear layer with N(0, 1) weights that are scaled at run time (Karras et al. 2018, section 4.1).

    With an adaptive optimizer all layers then learn at the same relative speed.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.scale = math.sqrt(2 / inputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.scale, self.bias)
