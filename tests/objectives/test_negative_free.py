"""Align and uniform, VICReg and SIGReg against loops, lightly, and numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from lightly.loss import VICRegLoss
from scipy.integrate import quad
from torch import Tensor
from torch.nn import functional as F

from fedssl.objectives.align_uniform import align_and_spread
from fedssl.objectives.sigreg import epps_pulley, sigreg
from fedssl.objectives.vicreg import vicreg


def pair(n: int = 6, width: int = 4) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    return torch.randn(n, width, generator=rng), torch.randn(n, width, generator=rng)


def test_align_and_uniform_by_hand() -> None:
    """Two orthogonal images (squared distance 2) with equal views: 0 + log exp(−2·2)."""
    z = torch.tensor([[1.0, 0], [0, 1], [3, 0], [0, 5]])
    assert float(align_and_spread(z, 2.0, 1.0)) == pytest.approx(-4.0)


def test_align_and_uniform_is_the_loop() -> None:
    a, b = pair()
    u, v = F.normalize(a, dim=1), F.normalize(b, dim=1)
    align = sum(float((x - y).square().sum()) for x, y in zip(u, v, strict=True)) / len(u)
    spread = 0.0
    for view in (u, v):
        kernel = [
            math.exp(-2 * float((view[i] - view[j]).square().sum()))
            for i in range(len(view))
            for j in range(i + 1, len(view))
        ]
        spread += math.log(sum(kernel) / len(kernel)) / 2
    assert float(align_and_spread(torch.cat([a, b]), 2.0, 0.5)) == pytest.approx(
        align + 0.5 * spread, rel=1e-5
    )


def test_vicreg_is_lightlys() -> None:
    a, b = pair(n=8)
    theirs = VICRegLoss(lambda_param=25.0, mu_param=20.0, nu_param=2.0)(a, b)
    assert float(vicreg(a, b, 25.0, 20.0, 2.0)) == pytest.approx(float(theirs), rel=1e-5)


def test_epps_pulley_is_the_integral() -> None:
    """Against numerical integration of the definition, sample by sample."""
    samples = torch.tensor([0.3, -1.2, 2.0, 0.1, 0.4]).double()

    def integrand(t: float) -> float:
        empirical = np.exp(1j * t * samples.numpy()).mean()
        return float(abs(empirical - math.exp(-t * t / 2)) ** 2 * math.exp(-t * t / 2))

    expected = len(samples) * quad(integrand, -5, 5)[0]
    assert float(epps_pulley(samples[:, None], 401)) == pytest.approx(expected, rel=1e-3)


def test_sigreg_prefers_the_normal_distribution() -> None:
    rng = torch.Generator().manual_seed(0)
    directions = F.normalize(torch.randn(4, 16, generator=rng), dim=0)
    normal = torch.randn(256, 4, generator=rng)
    collapsed, wide = torch.zeros(256, 4), 3 * normal

    def value(z: Tensor) -> float:
        return float(sigreg(torch.stack([z, z]), directions, 1.0, 17))

    assert value(normal) < 0.1 * min(value(collapsed), value(wide))


def test_sigreg_weighs_invariance() -> None:
    """With λ = 0 the loss is the variance of an image's views."""
    a, b = pair()
    value = sigreg(torch.stack([a, b]), torch.eye(4), 0.0, 17)
    assert float(value) == pytest.approx(float((a - b).square().mean() / 4), rel=1e-5)
