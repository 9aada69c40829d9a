"""The linear probe: multinomial logistic regression on frozen features.

`fit` solves a convex problem to convergence, so it has no learning rate, epochs or seed.
`fit_epochs` follows the papers: a fixed number of epochs of Adam or SGD.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedssl.errors import ConfigError, DataError, RunError
from fedssl.evaluation.features import check_features, check_labeled
from fedssl.evaluation.logistic import minimize

TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-9}


@dataclass(frozen=True)
class LinearProbe:
    """A linear classifier of unscaled features."""

    weight: Tensor  # [classes, D], float64 on the CPU
    bias: Tensor  # [classes]; −∞ for a class without training images
    converged: bool = True

    def logits(self, x: Tensor) -> Tensor:
        """Unnormalized log-probabilities [N, classes] of features [N, D]."""
        check_features(x)
        return torch.addmm(self.bias, x.detach().to(self.weight), self.weight.T)

    def predict(self, x: Tensor) -> Tensor:
        """The most probable class of each feature."""
        return self.logits(x).argmax(dim=1)


@torch.no_grad()
def fit(x: Tensor, y: Tensor, classes: int, *, l2: float = 1e-3) -> LinearProbe:
    """Fit a logistic regression to convergence: minimize mean cross-entropy + l2/2 · ‖weights‖².

    Features are standardized by their mean and deviation on the training set; the penalty applies to the
    weights of standardized features, not to the biases. Computed on the CPU in the precision of the
    features, until no entry of the gradient exceeds 1e-6 (float64: 1e-9).

    Args:
        x: training features [N, D].
        y: their labels [N].
        classes: the number of classes.
        l2: the penalty.
    """
    if l2 <= 0:
        raise ConfigError(f"l2={l2}: the penalty must be positive (separable features have no minimum)")
    present, target = present_classes(x, y, classes)
    x = x.detach().cpu()
    standard, products, mean, scale = _standardize(x if x.dtype == torch.float64 else x.float())
    dimensions = x.shape[1]
    penalty = torch.full((standard.shape[1],), l2, dtype=torch.float64)
    penalty[dimensions] = 0
    truth = F.one_hot(target, len(present)).T.double().contiguous()
    solution, converged = minimize(standard, products, truth, penalty, TOLERANCE[standard.dtype])
    weight = solution[:, :dimensions] * scale.double()
    bias = solution[:, dimensions] - weight @ mean.double()
    return of_all_classes(weight, bias, present, classes, converged)


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
    """Train the papers' linear layer on unscaled features for a fixed number of epochs.

    FedEMA: 200 epochs, batch 512, Adam 3e-3. L-DAWA: 100 epochs, batch 128, SGD (momentum 0.9) 0.01,
    with `milestones=(60, 80)`, the epochs at which the learning rate falls to a tenth.
    """
    present, target = present_classes(x, y, classes)
    rows, dimensions = x.shape
    ones = torch.ones(rows, 1, device=x.device)  # their weight is the bias
    data = torch.cat((x.detach().float(), ones), dim=1)
    truth = F.one_hot(target.to(x.device), len(present)).T.float().contiguous()
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
        for index in torch.split(order, batch_size):
            batch = data.index_select(0, index)
            error = (layer @ batch.T).softmax(dim=0).sub_(truth.index_select(1, index))
            layer.grad = (error @ batch).div_(len(batch))
            method.step()
    solution = layer.cpu().double()
    if not bool(solution.isfinite().all()):
        raise RunError(f"the linear probe diverged with lr={lr}: set a smaller learning rate")
    return of_all_classes(solution[:, :-1], solution[:, -1], present, classes)


def present_classes(x: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """The classes that occur in the training set, and the position of each row's class among them."""
    check_labeled(x, y, classes)
    present, target = torch.unique(y.cpu(), return_inverse=True)
    if len(present) < 2:
        raise DataError(
            f"all {len(y)} training images of the probe are of class {int(present[0])}: "
            "a probe needs at least two classes; use more labeled images"
        )
    return present, target


def of_all_classes(
    weight: Tensor, bias: Tensor, present: Tensor, classes: int, converged: bool = True
) -> LinearProbe:
    """Extend a probe of the classes that occur in the training set to all classes."""
    probe = LinearProbe(
        torch.zeros(classes, weight.shape[1], dtype=torch.float64),
        torch.full((classes,), -torch.inf, dtype=torch.float64),
        converged,
    )
    probe.weight[present], probe.bias[present] = weight, bias
    return probe


def _standardize(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Standardized features with a column of ones, their products, and each feature's mean and 1/deviation.

    A constant feature becomes 0, and so does its 1/deviation. Columns of zeros pad the width to a multiple
    of 16, since products of rows that are aligned to cache lines are faster.
    """
    rows, dimensions = x.shape
    mean = x.mean(dim=0)
    standard = x.new_zeros(rows, (dimensions + 16) // 16 * 16)
    standard[:, dimensions] = 1
    features = standard[:, :dimensions]
    torch.sub(x, mean, out=features)
    products = standard.T @ standard
    deviation = (products.diagonal()[:dimensions] / rows).sqrt()
    # Below this, the deviation is rounding of float32.
    scale = torch.where(deviation > 1e-6 * mean.abs(), 1 / deviation, 0.0)
    features.mul_(scale)
    whole = F.pad(scale, (0, standard.shape[1] - dimensions), value=1.0)
    return standard, products.mul_(whole).mul_(whole[:, None]), mean, scale
