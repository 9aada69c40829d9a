"""SimSiam: its loss against lightly, and its options."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from lightly.loss import NegativeCosineSimilarity
from torch import Tensor
from torch.nn import functional as F

from fedssl.models.model import Model
from fedssl.objectives.losses import negative_cosine
from fedssl.objectives.simsiam import SimSiam


def test_negative_cosine_is_lightlys_and_ignores_length() -> None:
    p, z = torch.randn(5, 3), torch.randn(5, 3)
    torch.testing.assert_close(negative_cosine(p, z), NegativeCosineSimilarity()(p, z))
    torch.testing.assert_close(negative_cosine(p * 7, z / 3), negative_cosine(p, z))
    assert float(negative_cosine(p, p)) == pytest.approx(-1)


def by_hand(model: Model, views: list[Tensor], predictor: bool, stop_gradient: bool) -> Tensor:
    """Eq. 4 with a loop over images."""
    z = [model.part("projector")(model.part("encoder")(view)) for view in views]
    p = [model.part("predictor")(each) if predictor else each for each in z]
    total = torch.zeros(())
    for one, other in ((0, 1), (1, 0)):
        for a, b in zip(p[one], z[other], strict=True):
            b = b.detach() if stop_gradient else b
            total = total - 0.5 * (a / a.norm()) @ (b / b.norm()) / len(views[0])
    return total


@pytest.mark.parametrize("predictor", [True, False])
@pytest.mark.parametrize("stop_gradient", [True, False])
def test_loss_and_gradient(
    predictor: bool,
    stop_gradient: bool,
    build: Callable[..., Model],
    views: list[Tensor],
    rng: torch.Generator,
) -> None:
    objective = SimSiam(predictor=predictor, stop_gradient=stop_gradient)
    model = build(objective)
    assert model.has("predictor") is predictor
    gradients = []
    losses = [objective.loss(model, views, None, rng), by_hand(model, views, predictor, stop_gradient)]
    for loss in losses:
        model.zero_grad()
        loss.backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*losses)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)


def test_stop_gradient_changes_the_gradient_only(
    build: Callable[..., Model], views: list[Tensor], rng: torch.Generator
) -> None:
    losses, gradients = [], []
    for stop in (True, False):
        objective = SimSiam(stop_gradient=stop)
        model = build(objective)
        loss = objective.loss(model, views, None, rng)
        loss.backward()
        losses.append(loss.detach())
        gradients.append(model.get_parameter("encoder.conv1.weight").grad)
    assert torch.equal(*losses)
    assert not torch.allclose(*gradients)


def test_swapping_views_changes_nothing(
    build: Callable[..., Model], views: list[Tensor], rng: torch.Generator
) -> None:
    model, objective = build(SimSiam()), SimSiam()
    torch.testing.assert_close(
        objective.loss(model, views, None, rng), objective.loss(model, views[::-1], None, rng)
    )


def test_without_stop_gradient_it_collapses(
    build: Callable[..., Model], views: list[Tensor], rng: torch.Generator
) -> None:
    """SimSiam, Fig. 2: without it all images soon have one projection; with it they do not."""
    spread = {}
    for stop in (True, False):
        objective = SimSiam(stop_gradient=stop)
        model = build(objective)
        optimizer = torch.optim.SGD(objective.trained(model), lr=0.2, momentum=0.9)
        for _ in range(40):
            optimizer.zero_grad()
            objective.loss(model, views, None, rng).backward()
            optimizer.step()
        z = F.normalize(model.part("projector")(model.part("encoder")(views[0])).detach(), dim=1)
        spread[stop] = float(z.std(dim=0).mean())
    assert spread[False] < 0.5 * spread[True]
