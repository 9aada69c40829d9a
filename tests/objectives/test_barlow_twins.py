"""Barlow Twins against lightly, a loop, and its symmetries."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lightly.loss import BarlowTwinsLoss
from torch import Tensor

from fedssl.models.model import Model
from fedssl.objectives.barlow_twins import BarlowTwins, barlow_twins


def pair(n: int = 16, width: int = 5) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    a = torch.randn(n, width, generator=rng)
    return a, a + torch.randn(n, width, generator=rng)


def loop(a: Tensor, b: Tensor, weight: float) -> float:
    """Eqs. 1 and 2, entry by entry; 1e-5 is what BatchNorm adds to a variance."""
    total, n = 0.0, len(a)
    for i in range(a.shape[1]):
        for j in range(b.shape[1]):
            x, y = a[:, i].double() - a[:, i].double().mean(), b[:, j].double() - b[:, j].double().mean()
            deviations = ((x @ x / n + 1e-5) * (y @ y / n + 1e-5)).sqrt()
            c = float(x @ y / n / deviations)
            total += (1 - c) ** 2 if i == j else weight * c**2
    return total


@pytest.mark.parametrize("weight", [0.0, 0.005, 1.0])
def test_the_loss_is_the_papers_and_lightlys(weight: float) -> None:
    a, b = pair()
    value = float(barlow_twins(a, b, weight))
    assert value == pytest.approx(loop(a, b, weight), rel=1e-5)
    assert value == pytest.approx(float(BarlowTwinsLoss(lambda_param=weight)(a, b)), rel=1e-5)


def test_invariances() -> None:
    """Of the loss to which view is first, to the order of images, and to each column's scale and shift."""
    a, b = pair()
    value = barlow_twins(a, b, 0.005)
    order = torch.randperm(len(a), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(barlow_twins(b, a, 0.005), value)
    torch.testing.assert_close(barlow_twins(a[order], b[order], 0.005), value)
    torch.testing.assert_close(
        barlow_twins(a * torch.arange(1, 6) + 3, b, 0.005), value, rtol=1e-3, atol=1e-3
    )


def test_a_batch_of_two() -> None:
    a, b = (z.requires_grad_() for z in pair(n=2))
    loss = barlow_twins(a, b, 0.005)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(a.grad).all()


def test_a_constant_column_does_not_divide_by_zero() -> None:
    a, b = pair()
    a[:, 0] = 1.0
    assert torch.isfinite(barlow_twins(a, b, 0.005))


def test_views_are_encoded_separately(
    build: Callable[..., Model], views: list[Tensor], rng: torch.Generator
) -> None:
    objective = BarlowTwins()
    model = build(objective)
    loss = objective.loss(model, views, None, rng)
    assert int(model.get_buffer("encoder.bn1.num_batches_tracked")) == 2
    a, b = (model.part("projector")(model.part("encoder")(view)).detach() for view in views)
    assert float(loss.detach()) == pytest.approx(loop(a, b, 0.005), rel=1e-4)
