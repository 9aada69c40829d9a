"""A share of the labels, for probes with 1 % or 10 % of them; and images with a given mix of classes."""

from __future__ import annotations

import torch
from torch import Tensor

from fedssl.errors import ConfigError, DataError
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


def same_class_mix(labels: Tensor, like: Tensor, seed: int, *purpose: int | str) -> Tensor:
    """Sorted indices of as many images as there can be with the class proportions of `like`.

    Args:
        labels: classes of the images to choose from.
        like: classes whose proportions are wanted; classes that `labels` does not have are left out.
        seed: seed of the run; which images of a class are chosen is random.
        purpose: further parts of the seed, for example the id of a client.

    Returns:
        Indices into `labels`. The class that runs out first is taken whole, the others in proportion.
    """
    classes = int(max(labels.max(), like.max())) + 1
    there, wanted = (values.cpu().bincount(minlength=classes) for values in (labels, like))
    wanted = torch.where(there > 0, wanted, 0)
    if not int(wanted.sum()):
        raise DataError("none of the test images is of a class that the client has")
    present = wanted > 0
    scale = float((there[present] / wanted[present]).min())
    counts = (scale * wanted + 0.5).floor().long().minimum(there)
    chosen = []
    for label in present.nonzero().flatten().tolist():
        members = (labels.cpu() == label).nonzero().flatten()
        rng = torch_rng(seed, "evaluation", "class mix", *purpose, label)
        chosen.append(members[torch.randperm(len(members), generator=rng)[: int(counts[label])]])
    return torch.cat(chosen).sort().values
