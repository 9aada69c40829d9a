"""Penalized multinomial logistic regression by preconditioned L-BFGS.

The logits are linear in the weights, so a step needs only two products with the features, whatever the number
of line search evaluations. The preconditioner is the second derivative at zero weights without the coupling
of classes. Features of an encoder are strongly correlated, and it saves two thirds of the steps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

MEMORY = 10  # past steps of L-BFGS
MAX_STEPS = 1000
SLOPE_RATIO = 0.3  # the line search ends when the slope has fallen to this share of the initial one


def minimize(
    x: Tensor, products: Tensor, truth: Tensor, penalty: Tensor, tolerance: float
) -> tuple[Tensor, bool]:
    """Minimize mean cross-entropy + ½ Σ penalty · weights².

    Only products with x are computed in its precision, everything else in double.

    Args:
        x: features [N, D].
        products: xᵀx.
        truth: one-hot labels [C, N].
        penalty: of each feature's weights [D].
        tolerance: largest entry of the gradient at convergence.

    Returns:
        The weights [C, D], and whether they converged.
    """
    classes, rows = truth.shape
    second = products.double() * ((1 - 1 / classes) / classes / rows)
    rounding = 1e-6 * float(second.diagonal().sum())
    second.diagonal().add_(penalty.clamp_min(rounding))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(second))
    weight, logits = torch.zeros(classes, x.shape[1], dtype=torch.float64), torch.zeros_like(truth)
    gradient = _gradient(x, truth, logits.softmax(dim=0), weight, penalty)
    steps: deque[Step] = deque(maxlen=MEMORY)
    for _ in range(MAX_STEPS):
        if float(gradient.abs().max()) <= tolerance:
            return weight, True
        direction = _inverse_times(gradient, steps, inverse).neg_()
        along = (x @ direction.T.to(x.dtype)).T.contiguous().double()
        rest = float((penalty * weight * direction).sum()) - _dot(truth, along) / rows
        bend = float((penalty * direction.square()).sum())
        length, probability = search(logits, along, _dot(gradient, direction), rest, bend)
        step = direction.mul_(length)
        weight = weight + step
        logits.add_(along, alpha=length)
        before, gradient = gradient, _gradient(x, truth, probability, weight, penalty)
        change = gradient - before
        product = _dot(step, change)
        if product > 0:  # always, except for rounding: the function is strictly convex
            steps.append(Step(step, change, product, product / _dot(change, change @ inverse)))
    return weight, False


@dataclass(frozen=True)
class Step:
    """A past step, and how it changed the gradient."""

    step: Tensor
    change: Tensor
    product: float  # of the two
    scale: float  # of the inverse second derivative, relative to the preconditioner


def _dot(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a.view(-1), b.view(-1)))


def _gradient(x: Tensor, truth: Tensor, probability: Tensor, weight: Tensor, penalty: Tensor) -> Tensor:
    error = probability.sub_(truth).to(x.dtype)
    return (error @ x).double().div_(len(x)).addcmul_(penalty, weight)


def _inverse_times(gradient: Tensor, steps: deque[Step], inverse: Tensor) -> Tensor:
    """The inverse second derivative times the gradient (Nocedal and Wright, 2006, algorithm 7.4)."""
    result, shares = gradient.clone(), []
    for past in reversed(steps):
        shares.append(_dot(past.step, result) / past.product)
        result.sub_(past.change, alpha=shares[-1])
    result = result @ inverse
    if steps:
        result.mul_(steps[-1].scale)
    for past, share in zip(steps, reversed(shares), strict=True):
        result.add_(past.step, alpha=share - _dot(past.change, result) / past.product)
    return result


def search(logits: Tensor, along: Tensor, start: float, rest: float, bend: float) -> tuple[float, Tensor]:
    """Find the step length and the probabilities there, by Newton's method within a bracket of the minimum.

    The function is convex, so its slope increases from `start` < 0 at length 0. At any length it is
    the mean of the expected change of the logits + `rest` + length · `bend`.
    """
    rows = logits.shape[1]
    low, high, length = 0.0, torch.inf, 1.0
    for _ in range(30):
        probability = torch.add(logits, along, alpha=length).softmax(dim=0)
        weighted = probability * along
        expected = weighted.sum(dim=0)
        slope = float(expected.sum()) / rows + rest + length * bend
        if abs(slope) <= SLOPE_RATIO * abs(start):
            return length, probability
        low, high = (length, high) if slope < 0 else (low, length)
        rise = (_dot(weighted, along) - _dot(expected, expected)) / rows + bend
        length = min(length - slope / rise, 10 * length) if rise > 0 else high
        if not low < length < high:
            length = (low + high) / 2 if high < torch.inf else 2 * low
    return length, torch.add(logits, along, alpha=length).softmax(dim=0)
