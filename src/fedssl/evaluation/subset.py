"""A share of the labels, for probes with 1 % or 10 % of them."""

from __future__ import annotations

import torch
from torch import Tensor

from fedssl.errors import ConfigError
from fedssl.rng import torch_rng


def subset(labels: Tensor, fraction: float, seed: int) -> Tensor:
    """Sorted indices of a stratified share: of each class that share (rounded), but at least one image.

    With the same seed a smaller share is part of a larger one.
    """
    if not 0 < fraction <= 1:
        raise ConfigError(f"a share of {fraction} of the labels: it must lie above 0 and be at most 1")
    labels = labels.cpu()
    chosen = []
    for label in torch.unique(labels).tolist():
        members = (labels == label).nonzero().squeeze(1)
        order = torch.randperm(len(members), generator=torch_rng(seed, "evaluation", "subset", label))
        chosen.append(members[order[: max(1, round(fraction * len(members)))]])
    return torch.cat(chosen).sort().values if chosen else labels.new_empty(0, dtype=torch.int64)
