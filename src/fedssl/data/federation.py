"""Who has which images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedssl.config import Config
from fedssl.data.images import ImageSet
from fedssl.data.sets import Progress, load, split_holdout
from fedssl.data.shifts import Shift
from fedssl.errors import DataError


@dataclass(frozen=True)
class ClientImages:
    """A client's own images: indices into the tensor that holds all images of this process."""

    x: Tensor
    y: Tensor | None
    indices: Tensor
    shift: Shift
    client: int
    clients: int

    def __len__(self) -> int:
        return int(self.indices.numel())

    def batch(self, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Images (uint8, NHWC) and labels at these positions of the client's own list."""
        index = self.indices[positions]
        return (
            self.shift.apply(self.x.index_select(0, index), self.client, self.clients),
            None if self.y is None else self.y[index],
        )


@dataclass(frozen=True)
class Federation:
    """The images of a run and how they are spread over its clients."""

    train: ImageSet
    test: ImageSet | None
    parts: list[NDArray[np.int64]]
    labelled: NDArray[np.int64]  # held out of pre-training

    @property
    def clients(self) -> int:
        return len(self.parts)

    def images_of(self, client: int, config: Config) -> ClientImages:
        return ClientImages(
            x=self.train.x,
            y=self.train.y,
            indices=torch.from_numpy(self.parts[client]),
            shift=config.shift,
            client=client,
            clients=self.clients,
        )


def federate(config: Config, progress: Progress | None = None) -> Federation:
    """Load the images and deal them out."""
    train, test = load(config.data, config.seed, progress)
    if config.objective.needs_labels and train.y is None:
        raise DataError(f"objective {config.objective.name} needs labels, and {train.name} has none")
    everything = np.arange(len(train))
    dealt, labelled = everything, everything[:0]
    if config.data.holdout:
        if train.y is None:
            raise DataError(f"data.holdout needs labels, and {train.name} has none")
        dealt, labelled = split_holdout(train, config.data.holdout, config.seed)
    parts = config.partition.split(
        None if train.y is None else train.y.numpy()[dealt],
        config.seed,
        None if train.domain is None else train.domain.numpy()[dealt],
        len(dealt),
    )
    parts = [np.ascontiguousarray(dealt[part]) for part in parts]
    if config.method.pools_data:
        parts = [np.sort(np.concatenate(parts))]
    return Federation(train, test, parts, labelled)
