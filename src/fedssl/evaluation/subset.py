"""Stratified subsets, and subsets with given class proportions."""

from __future__ import annotations

import torch
from torch import Tensor

from fedssl.errors import ConfigError, DataError
from fedssl.rng import torch_rng


def subset(labels: Tensor, fraction: float, seed: int) -> Tensor:
    """Sorted indices of a stratified subset, with at least one image of each class.

    With the same seed, a smaller subset is contained in a larger one.

    Args:
        labels: the class of each image.
        fraction: the share of each class to keep.
        seed: of the random choice.
    """
    if not 0 < fraction <= 1:
        raise ConfigError(f"the share of labels must be above 0 and at most 1, not {fraction}")
    labels = labels.cpu()
    chosen = []
    for label in torch.unique(labels).tolist():
        members = (labels == label).nonzero().squeeze(1)
        order = torch.randperm(len(members), generator=torch_rng(seed, "evaluation", "subset", label))
        chosen.append(members[order[: max(1, round(fraction * len(members)))]])
    return torch.cat(chosen).sort().values if chosen else labels.new_empty(0, dtype=torch.int64)


def same_class_mix(labels: Tensor, like: Tensor, seed: int, *purpose: int | str) -> Tensor:
    """Sorted indices of the largest random subset with the class proportions of `like`.

    Args:
        labels: classes of the images to choose from.
        like: classes with the wanted proportions; classes that `labels` lacks are ignored.
        seed: seed of the run.
        purpose: further parts of the seed, for example the id of a client.

    Returns:
        Indices into `labels`. The scarcest class is taken whole, the others in proportion.
    """
    classes = int(max(labels.max(), like.max())) + 1
    there, wanted = (values.cpu().bincount(minlength=classes) for values in (labels, like))
    wanted = torch.where(there > 0, wanted, 0)
    if not int(wanted.sum()):
        raise DataError("no test image is of a class that the client has")
    present = wanted > 0
    scale = float((there[present] / wanted[present]).min())
    counts = (scale * wanted + 0.5).floor().long().minimum(there)
    chosen = []
    for label in present.nonzero().flatten().tolist():
        members = (labels.cpu() == label).nonzero().flatten()
        rng = torch_rng(seed, "evaluation", "class mix", *purpose, label)
        chosen.append(members[torch.randperm(len(members), generator=rng)[: int(counts[label])]])
    return torch.cat(chosen).sort().values
