"""The linear probe of an encoder with a part that is trained together with the classifier."""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.errors import ConfigError, RunError
from fedssl.evaluation import linear
from fedssl.evaluation.linear import LinearProbe
from fedssl.evaluation.options import ProbeConfig
from fedssl.evaluation.probes import Prober
from fedssl.evaluation.scores import Scores, score
from fedssl.models.tuned import Tuned
from fedssl.rng import torch_rng


def score_tuned(prober: Prober, encoder: Tuned) -> Scores:
    """Train the tuned part with a linear classifier on features of the frozen part, and score them.

    Both are trained like the classifier of `probe.form=epochs`. With `probe.form=fast` the classifier is then
    fitted again to convergence, as for other encoders.
    """
    assert prober.train.y is not None
    assert prober.test.y is not None
    config, rng = prober.config, torch_rng(prober.seed, "tuned probe")
    if config.features != "pooled":
        raise ConfigError(
            f"probe.features={config.features}: this personal encoder needs probe.features=pooled"
        )
    train, test = (prober.features(encoder.frozen, images) for images in (prober.train, prober.test))
    tuned, probe = fit_tuned(encoder.tuned, train, prober.train.y, prober.classes, config, rng, prober.device)
    personal_train, personal_test = (_features(tuned, frozen, prober.device) for frozen in (train, test))
    if config.form == "fast":
        probe = linear.fit(personal_train, prober.train.y, prober.classes, l2=config.l2)
    return score(probe.predict(personal_test), prober.test.y, prober.test.classes)


def fit_tuned(
    module: nn.Module,
    frozen: Tensor,
    y: Tensor,
    classes: int,
    config: ProbeConfig,
    rng: torch.Generator,
    device: torch.device,
) -> tuple[nn.Module, LinearProbe]:
    """Train a copy of the module together with a classifier; returns both (FedStyle, section on Eq. 4)."""
    present, target = linear.present_classes(frozen, y, classes)
    frozen, target = frozen.float().to(device), target.to(device)
    tuned = copy.deepcopy(module).to(device).train()
    width = int(_features(tuned, frozen[:1], device).shape[1])
    bound = width**-0.5  # the initial layer is that of torch.nn.Linear
    layer = torch.empty(len(present), width + 1).uniform_(-bound, bound, generator=rng).to(device)
    weight = nn.Parameter(layer[:, :-1].clone())
    bias = nn.Parameter(layer[:, -1].clone())
    parameters = [*tuned.parameters(), weight, bias]
    method: torch.optim.Optimizer
    if config.optimizer == "adam":
        method = torch.optim.Adam(parameters, lr=config.lr)
    else:
        method = torch.optim.SGD(parameters, lr=config.lr, momentum=0.9)
    for epoch in range(config.epochs):
        method.param_groups[0]["lr"] = config.lr * 0.1 ** sum(epoch >= after for after in config.milestones)
        order = torch.randperm(len(frozen), generator=rng).to(device)
        for index in torch.split(order, config.batch_size):
            loss = F.cross_entropy(F.linear(tuned(frozen[index]), weight, bias), target[index])
            method.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            method.step()
    if not all(bool(value.isfinite().all()) for value in parameters):
        raise RunError(f"the personal probe diverged with probe.lr={config.lr}: set a smaller learning rate")
    classifier = linear.of_all_classes(
        weight.detach().cpu().double(), bias.detach().cpu().double(), present, classes
    )
    return tuned, classifier


@torch.no_grad()
def _features(module: nn.Module, frozen: Tensor, device: torch.device) -> Tensor:
    return cast(Tensor, module(frozen.float().to(device))).cpu()
