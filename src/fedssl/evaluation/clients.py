"""Helpers of evaluations client by client: the clients' images and their domains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedssl.data.images import ImageSet
from fedssl.errors import DataError
from fedssl.evaluation.loaded import LoadedRun
from fedssl.evaluation.probes import Prober
from fedssl.evaluation.scores import Scores, score
from fedssl.evaluation.tuned import score_tuned
from fedssl.models.tuned import Tuned


def labeled(run: LoadedRun) -> tuple[ImageSet, ImageSet]:
    """The run's training and test images.

    Raises:
        DataError: there are no labels to probe with.
    """
    train, test = run.federation.train, run.federation.test
    why_not = Prober.why_not(train, test)
    if why_not or test is None:
        raise DataError(f"cannot probe: {why_not}")
    return train, test


def parts_of(run: LoadedRun) -> Sequence[NDArray[np.int64]]:
    """The training images of every client, by number.

    Raises:
        DataError: the images are at sites.
    """
    if not run.trained.engine.sees_clients:
        raise DataError("the clients' images are at the sites: this evaluation needs them here")
    return run.federation.parts


def of_same_style(train: ImageSet, test: ImageSet, part: NDArray[np.int64]) -> ImageSet:
    """The test images of a client's domains; all test images if the data have no domains."""
    if train.domain is None or test.domain is None:
        return test
    own = np.isin(test.domain.numpy(), numbers(train.domain[torch.from_numpy(part)]))
    return test.subset(np.flatnonzero(own))


def style_name(train: ImageSet, part: NDArray[np.int64]) -> str:
    """The names of a client's domains, joined by `+`; empty if the data have no domains."""
    if train.domain is None:
        return ""
    return "+".join(train.domains[style] for style in numbers(train.domain[torch.from_numpy(part)]))


def apply_shift_of(client: int, run: LoadedRun, images: ImageSet) -> ImageSet:
    """Apply a client's shift to images."""
    return replace(images, x=run.trained.shift.apply(images.x, client, run.federation.clients))


def numbers(values: Tensor) -> list[int]:
    """The distinct numbers in ascending order."""
    return [int(number) for number in np.unique(values.numpy())]


def linear_scores(prober: Prober, encoder: nn.Module) -> Scores:
    """Scores of the linear probe; with training images of one class only, that class is always predicted."""
    assert prober.train.y is not None
    assert prober.test.y is not None
    if len(numbers(prober.train.y)) == 1:
        return score(prober.train.y[:1].expand(len(prober.test)), prober.test.y, prober.test.classes)
    if isinstance(encoder, Tuned):
        return score_tuned(prober, encoder)
    return prober.run_all(encoder, ["linear"])["linear"]
