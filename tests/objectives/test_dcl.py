"""Decoupled contrastive learning against a loop, lightly, and numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from lightly.loss import DCLLoss
from torch import Tensor

from fedssl.objectives.dcl import decoupled


def pair(n: int = 5, width: int = 7) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    return torch.randn(n, width, generator=rng), torch.randn(n, width, generator=rng)


def loop(a: Tensor, b: Tensor, temperature: float) -> float:
    z = [row / row.norm() for row in torch.cat([a, b]).double()]
    n, total = len(a), 0.0
    for i in range(2 * n):
        partner = (i + n) % (2 * n)
        others = [math.exp(float(z[i] @ z[k]) / temperature) for k in range(2 * n) if k not in (i, partner)]
        total += math.log(sum(others)) - float(z[i] @ z[partner]) / temperature
    return total / (2 * n)


@pytest.mark.parametrize("temperature", [0.1, 0.2, 1.0])
def test_equals_the_loop_and_lightly(temperature: float) -> None:
    a, b = pair()
    value = float(decoupled(torch.cat([a, b]), temperature))
    assert value == pytest.approx(loop(a, b, temperature), rel=1e-5)
    assert value == pytest.approx(float(DCLLoss(temperature)(a, b)), rel=1e-5)


def test_by_hand() -> None:
    """Two orthogonal images with equal views: the positive counts 2, the two negatives log 2."""
    z = torch.tensor([[1.0, 0], [0, 1], [3, 0], [0, 5]])
    assert float(decoupled(z, 0.5)) == pytest.approx(math.log(2) - 2)


def test_the_gradient_does_not_vanish_where_simclrs_does() -> None:
    """The positive is not in the denominator, so its gradient is 1/τ even for an easy pair."""
    from fedssl.objectives.simclr import nt_xent

    z = torch.tensor([[1.0, 0.1], [0.1, 1.0], [1.0, -0.1], [-0.1, 1.0]], requires_grad=True)
    (easy,) = torch.autograd.grad(nt_xent(z, 0.05), z)
    (kept,) = torch.autograd.grad(decoupled(z, 0.05), z)
    assert float(easy.norm()) < 1e-3 < 1 < float(kept.norm())
