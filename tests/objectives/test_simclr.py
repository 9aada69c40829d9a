"""NT-Xent against a loop, lightly, and its symmetries."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from lightly.loss import NTXentLoss
from torch import Tensor

from fedssl.models.model import Model
from fedssl.objectives.simclr import SimCLR, nt_xent


def pair(n: int = 5, width: int = 7) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    return torch.randn(n, width, generator=rng), torch.randn(n, width, generator=rng)


def loop(a: Tensor, b: Tensor, temperature: float) -> float:
    """SimCLR's Eq. 1 literally, view by view."""
    z = [row / row.norm() for row in torch.cat([a, b]).double()]
    n, total = len(a), 0.0
    for i in range(2 * n):
        partner = (i + n) % (2 * n)
        others = [math.exp(float(z[i] @ z[k]) / temperature) for k in range(2 * n) if k != i]
        total -= math.log(math.exp(float(z[i] @ z[partner]) / temperature) / sum(others))
    return total / (2 * n)


@pytest.mark.parametrize("temperature", [0.07, 0.5, 2.0])
def test_nt_xent_is_the_papers_and_lightlys(temperature: float) -> None:
    a, b = pair()
    value = float(nt_xent(torch.cat([a, b]), temperature))
    assert value == pytest.approx(loop(a, b, temperature), rel=1e-5)
    assert value == pytest.approx(float(NTXentLoss(temperature)(a, b)), rel=1e-5)


def test_by_hand() -> None:
    """Two orthogonal images with equal views: −log(e² / (e² + 2)) at temperature ½."""
    z = torch.tensor([[1.0, 0], [0, 1], [3, 0], [0, 5]])
    assert float(nt_xent(z, 0.5)) == pytest.approx(-math.log(math.e**2 / (math.e**2 + 2)))


def test_invariances() -> None:
    a, b = pair()
    value = nt_xent(torch.cat([a, b]), 0.5)
    order = torch.tensor([3, 0, 4, 1, 2])
    scale = torch.tensor([1.0, 2, 3, 4, 5]).unsqueeze(1)
    torch.testing.assert_close(nt_xent(torch.cat([b, a]), 0.5), value)
    torch.testing.assert_close(nt_xent(torch.cat([a[order], b[order]]), 0.5), value)
    torch.testing.assert_close(nt_xent(torch.cat([a * scale, b]), 0.5), value)
    assert not torch.isclose(nt_xent(torch.cat([a[order], b]), 0.5), value)


def test_both_views_share_a_pass(
    build: Callable[..., Model], views: list[Tensor], rng: torch.Generator
) -> None:
    model = build(SimCLR())
    loss = SimCLR().loss(model, views, None, rng)
    assert int(model.get_buffer("encoder.bn1.num_batches_tracked")) == 1
    z = model.part("projector")(model.part("encoder")(torch.cat(views)))
    assert float(loss.detach()) == pytest.approx(loop(*z.detach().chunk(2), 0.5), rel=1e-4)
