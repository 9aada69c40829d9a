"""The linear probe: multinomial logistic regression on frozen features.

`fit` finds the one minimum of a convex function, so it has no learning rate, no epochs and no seed.
`fit_epochs` is the form of the papers: so many epochs of Adam or SGD.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedssl.errors import ConfigError, DataError
from fedssl.evaluation.features import check_features, check_labelled
from fedssl.evaluation.logistic import minimise


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
    dimensions = x.shape[1]
    penalty = torch.full((standard.shape[1],), l2, dtype=torch.float64)
    penalty[dimensions] = 0
    truth = F.one_hot(target, len(present)).T.double().contiguous()
    solution, converged = minimise(standard, truth, penalty, tolerance=max(1e-4 * l2, 1e-11))
    weight = solution[:, :dimensions] * scale
    return _probe(weight, solution[:, dimensions] - weight @ mean, present, classes, converged)


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
    return _probe(solution[:, :-1], solution[:, -1], present, classes)


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


def _probe(
    weight: Tensor, bias: Tensor, present: Tensor, classes: int, converged: bool = True
) -> LinearProbe:
    """The probe of all classes, from the weights of those that the training set has."""
    probe = LinearProbe(
        torch.zeros(classes, weight.shape[1], dtype=torch.float64),
        torch.full((classes,), -torch.inf, dtype=torch.float64),
        converged,
    )
    probe.weight[present], probe.bias[present] = weight, bias
    return probe


def _standardise(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Standardised features, then a column of ones; their mean, and 1/deviation (0 for a constant feature).

    Columns of zeros make the width a multiple of 8: products with rows that are not aligned to cache
    lines take twice as long.
    """
    rows, dimensions = x.shape
    standard = torch.zeros(rows, (dimensions + 8) // 8 * 8, dtype=torch.float64)
    standard[:, dimensions] = 1
    inner = standard[:, :dimensions]
    inner.copy_(x.detach())
    mean = inner.mean(dim=0)
    inner.sub_(mean)
    deviation = torch.linalg.vector_norm(inner, dim=0) / rows**0.5
    # Below this the deviation is the rounding of float32, not information.
    scale = torch.where(deviation > 1e-6 * mean.abs(), 1 / deviation, 0.0)
    inner.mul_(scale)
    return standard, mean, scale
