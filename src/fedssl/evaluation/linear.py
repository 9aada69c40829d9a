"""The linear probe: multinomial logistic regression on frozen features.

`fit` finds the one minimum of a convex function, so it has no learning rate, no epochs and no seed.
`fit_epochs` is the form of the papers: so many epochs of Adam or SGD.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedssl.errors import ConfigError, DataError
from fedssl.evaluation.features import check_features, check_labelled

MEMORY = 10  # steps that L-BFGS remembers
MOST_STEPS = 1000


@dataclass(frozen=True)
class LinearProbe:
    """A linear classifier of features as the encoder gives them."""

    weight: Tensor  # [classes, D], float64 on the CPU
    bias: Tensor  # [classes]; −∞ for a class that the training set did not have
    converged: bool = True

    def logits(self, x: Tensor) -> Tensor:
        """Unnormalised log-probabilities [N, classes] of features [N, D]."""
        check_features(x)
        return torch.addmm(self.bias, x.detach().to(self.weight), self.weight.T)

    def predict(self, x: Tensor) -> Tensor:
        """The most probable class of each feature."""
        return self.logits(x).argmax(dim=1)


@torch.no_grad()
def fit(x: Tensor, y: Tensor, classes: int, *, l2: float = 1e-3) -> LinearProbe:
    """Logistic regression to convergence: the minimum of mean cross-entropy + l2/2 · ‖weights‖².

    Features are standardised by their mean and deviation on this training set; the penalty is on the
    weights of standardised features, and not on the biases. Computed in double precision on the CPU,
    to within 1e-4 · l2 of a zero gradient: more or fewer threads change nothing that can be seen.
    """
    if l2 <= 0:
        raise ConfigError(f"l2={l2}: the penalty must be positive, or separable features have no minimum")
    present, target = _classes(x, y, classes)
    standard, mean, scale = _standardise(x)
    solution, converged = _minimise(standard, F.one_hot(target, len(present)).T.double().contiguous(), l2)
    weight = torch.zeros(classes, x.shape[1], dtype=torch.float64)
    weight[present] = solution[:, :-1] * scale
    bias = torch.full((classes,), -torch.inf, dtype=torch.float64)
    bias[present] = solution[:, -1] - weight[present] @ mean
    return LinearProbe(weight, bias, converged)


@torch.no_grad()
def fit_epochs(
    x: Tensor,
    y: Tensor,
    classes: int,
    *,
    epochs: int,
    batch_size: int,
    lr: float,
    optimizer: Literal["adam", "sgd"],
    rng: torch.Generator,
    milestones: Sequence[int] = (),
) -> LinearProbe:
    """The papers' linear layer on features as they are; what the last epoch leaves is the result.

    FedEMA: 200 epochs, batch 512, Adam 3e-3. L-DAWA: 100 epochs, batch 128, SGD (momentum 0.9) 0.01,
    with `milestones=(60, 80)`, the epochs at which the learning rate falls to a tenth.
    """
    present, target = _classes(x, y, classes)
    rows, dimensions = x.shape
    ones = torch.ones(rows, 1, device=x.device)  # their weight is the bias
    data = torch.cat((x.detach().float(), ones), dim=1)
    labels = F.one_hot(target.to(x.device), len(present)).float()
    bound = dimensions**-0.5  # the initial layer is that of torch.nn.Linear
    layer = torch.empty(len(present), dimensions + 1).uniform_(-bound, bound, generator=rng).to(x.device)
    method: torch.optim.Optimizer
    if optimizer == "adam":
        method = torch.optim.Adam([layer], lr=lr)
    else:
        method = torch.optim.SGD([layer], lr=lr, momentum=0.9)
    for epoch in range(epochs):
        method.param_groups[0]["lr"] = lr * 0.1 ** sum(epoch >= milestone for milestone in milestones)
        order = torch.randperm(rows, generator=rng).to(x.device)
        shuffled, truths = torch.split(data[order], batch_size), torch.split(labels[order], batch_size)
        for batch, truth in zip(shuffled, truths, strict=True):
            error = (batch @ layer.T).softmax(dim=1).sub_(truth)
            layer.grad = error.T @ batch / len(batch)
            method.step()
    solution = layer.cpu().double()
    weight = torch.zeros(classes, dimensions, dtype=torch.float64)
    weight[present] = solution[:, :-1]
    bias = torch.full((classes,), -torch.inf, dtype=torch.float64)
    bias[present] = solution[:, -1]
    return LinearProbe(weight, bias)


def _classes(x: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The classes that the training set has, and for each row the place of its class among them."""
    check_labelled(x, y, classes)
    present, target = torch.unique(y.cpu(), return_inverse=True)
    if len(present) < 2:
        raise DataError(
            f"all {len(y)} training images of the probe are of class {int(present[0])}:"
            " it needs at least two classes; give it more labelled images"
        )
    return present, target


def _standardise(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Standardised features with a column of ones; mean, and 1/deviation (0 for a constant feature)."""
    rows, dimensions = x.shape
    standard = torch.ones(rows, dimensions + 1, dtype=torch.float64)
    inner = standard[:, :-1]
    inner.copy_(x.detach())
    mean = inner.mean(dim=0)
    inner.sub_(mean)
    deviation = inner.square().mean(dim=0).sqrt_()
    # Below this the deviation is the rounding of float32, not information.
    scale = torch.where(deviation > 1e-6 * mean.abs(), 1 / deviation, 0.0)
    inner.mul_(scale)
    return standard, mean, scale


def _minimise(x: Tensor, truth: Tensor, l2: float) -> tuple[Tensor, bool]:
    """Preconditioned L-BFGS: weights [C, D] of x [N, D] for one-hot truth [C, N], and whether it converged.

    The logits are linear in the weights, so a step needs two products with x and no more, however
    often the line search looks along it. The preconditioner is the exact second derivative at zero
    weights, up to its coupling of classes: features of an encoder are strongly correlated, and
    without it that takes three times as many steps. (L-BFGS: Nocedal and Wright, 2006, section 7.2.)
    """
    classes, rows = truth.shape
    penalty = torch.full((x.shape[1],), l2, dtype=x.dtype)
    penalty[-1] = 0
    curvature = (1 - 1 / classes) / classes
    second = (x.T @ x).mul_(curvature / rows)
    second.diagonal().add_(penalty.clamp_min(1e-8))
    root = torch.linalg.cholesky(second)
    weight, logits = torch.zeros(classes, x.shape[1], dtype=x.dtype), torch.zeros_like(truth)
    gradient = _gradient(x, truth, logits, weight, penalty)
    steps: deque[tuple[Tensor, Tensor]] = deque(maxlen=MEMORY)
    tolerance = max(1e-4 * l2, 1e-11)
    for _ in range(MOST_STEPS):
        if float(gradient.abs().max()) <= tolerance:
            return weight, True
        direction = -_inverse_times(gradient, steps, root)
        along = (x @ direction.T).T.contiguous()
        length = _step_length(logits, along, truth, weight, direction, penalty)
        weight = weight + length * direction
        logits.add_(along, alpha=length)
        before, gradient = gradient, _gradient(x, truth, logits, weight, penalty)
        steps.append((length * direction, gradient - before))
    return weight, False


def _gradient(x: Tensor, truth: Tensor, logits: Tensor, weight: Tensor, penalty: Tensor) -> Tensor:
    """Of mean cross-entropy + ½ Σ penalty · weight²."""
    return (logits.softmax(dim=0) - truth) @ x / len(x) + penalty * weight


def _inverse_times(gradient: Tensor, steps: deque[tuple[Tensor, Tensor]], root: Tensor) -> Tensor:
    """The inverse second derivative, as far as the steps and the preconditioner tell, times the gradient."""
    result, shares = gradient.clone(), []
    for step, change in reversed(steps):
        share = (step * result).sum() / (step * change).sum()
        result -= share * change
        shares.append(share)
    result = torch.cholesky_solve(result.T, root).T
    if steps:
        step, change = steps[-1]
        result *= (step * change).sum() / (change.T * torch.cholesky_solve(change.T, root)).sum()
    for (step, change), share in zip(steps, reversed(shares), strict=True):
        result += (share - (change * result).sum() / (step * change).sum()) * step
    return result


def _step_length(
    logits: Tensor, along: Tensor, truth: Tensor, weight: Tensor, direction: Tensor, penalty: Tensor
) -> float:
    """How far to go: Newton's method, kept within what is known to enclose the minimum.

    Along a line the function is convex: its slope only rises, from below zero at length 0.
    """
    rows = truth.shape[1]
    pull = float((penalty * weight * direction).sum() - (truth * along).sum() / rows)
    bend = float((penalty * direction.square()).sum())
    start = float((logits.softmax(dim=0) * along).sum() / rows) + pull
    low, high, length = 0.0, torch.inf, 1.0
    for _ in range(30):
        weighted = (logits + length * along).softmax(dim=0).mul_(along)
        expected = weighted.sum(dim=0)
        slope = float(expected.sum() / rows) + pull + length * bend
        if abs(slope) <= 0.1 * abs(start):
            break
        low, high = (length, high) if slope < 0 else (low, length)
        rise = float(((weighted * along).sum() - expected.square().sum()) / rows) + bend
        length = min(length - slope / rise, 10 * length) if rise > 0 else high
        if not low < length < high:
            length = (low + high) / 2 if high < torch.inf else 2 * low
    return length
