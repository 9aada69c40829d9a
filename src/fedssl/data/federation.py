"""The images of a run, and their assignment to clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedssl.config import Config
from fedssl.data.images import ImageSet
from fedssl.data.parts import Parts
from fedssl.data.sets import load, split_holdout
from fedssl.data.shifts import Shift
from fedssl.errors import ConfigError, DataError
from fedssl.progress import Progress


@dataclass(frozen=True)
class ClientImages:
    """A client's images, as indices into the tensor of all images in this process."""

    x: Tensor
    y: Tensor | None
    indices: Tensor
    shift: Shift
    client: int
    clients: int

    def __len__(self) -> int:
        return int(self.indices.numel())

    def batch(self, positions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Images (uint8, NHWC) with the client's shift, and labels, at these positions of `indices`."""
        index = self.indices[positions]
        return (
            self.shift.apply(self.x.index_select(0, index), self.client, self.clients),
            None if self.y is None else self.y[index],
        )


@dataclass(frozen=True)
class Federation:
    """The images of a run, and their assignment to clients."""

    train: ImageSet
    test: ImageSet | None
    parts: Sequence[NDArray[np.int64]]
    labeled: NDArray[np.int64]  # held out of pre-training
    # With partition.workers: for each worker, the images of each of its clients.
    turns: tuple[tuple[NDArray[np.int64], ...], ...] = ()

    @property
    def clients(self) -> int:
        return len(self.parts)

    def holdings(self) -> dict[str, dict[str, Any]]:
        """Number of images per client, by class and by style, if these are known.

        Example: `{"class": {"names": ["cat", "dog"], "counts": [{"0": 12}, {"0": 3, "1": 9}]}}`.
        """
        train, found = self.train, {}
        for kind, values, names in (
            ("class", train.y, train.classes),
            ("style", train.domain, train.domains),
        ):
            if values is not None:
                present, codes = np.unique(values.numpy(), return_inverse=True)
                counts: list[dict[str, int]] = [{} for _ in self.parts]
                table = Parts.of(self.parts).counts(codes, len(present))
                for client, code in zip(*np.nonzero(table), strict=True):
                    counts[client][str(present[code])] = int(table[client, code])
                found[kind] = {"names": list(names), "counts": counts}
        return found

    def num_images(self, client: int, round: int) -> int:
        return len(self._turn(client, round)[0])

    def images_of(self, client: int, config: Config, round: int = 1) -> ClientImages:
        """A client's images; with `partition.workers`, those of the worker's client of this round."""
        indices, owner, clients = self._turn(client, round)
        return ClientImages(
            x=self.train.x,
            y=self.train.y,
            indices=torch.from_numpy(indices),
            shift=config.shift,
            client=owner,
            clients=clients,
        )

    def _turn(self, client: int, round: int) -> tuple[NDArray[np.int64], int, int]:
        """The images to train on, the client that owns them, and the number of clients."""
        if not self.turns:
            return self.parts[client], client, self.clients
        own = self.turns[client]
        turn = (round - 1) % len(own)
        return own[turn], client * len(own) + turn, self.clients * len(own)


def federate(config: Config, progress: Progress | None = None) -> Federation:
    """Load the images of a run, and assign them to clients."""
    data = config.data
    if config.partition.by_site and data.name == "folder":
        data = data.model_copy(update={"layout": "site"})
    train, test = load(data, config.seed, progress)
    if config.objective.needs_labels and train.y is None:
        raise DataError(f"objective {config.objective.name} needs labels, but {train.name} has none")
    everything = np.arange(len(train))
    dealt, labeled = everything, everything[:0]
    if config.data.holdout:
        if train.y is None:
            raise DataError(f"data.holdout needs labels, but {train.name} has none")
        dealt, labeled = split_holdout(train, config.data.holdout, config.seed)
    parts = config.partition.split(
        None if train.y is None else train.y.numpy()[dealt],
        config.seed,
        None if train.domain is None else train.domain.numpy()[dealt],
        len(dealt),
        config.partition.extract_features(train.subset(dealt) if len(dealt) < len(train) else train),
    )
    parts = [np.ascontiguousarray(dealt[part]) for part in parts]
    if config.method.pools_data:
        parts = [np.sort(np.concatenate(parts))]
    elif config.partition.workers:
        turns = take_turns(parts, config.partition.workers)
        return Federation(train, test, [np.unique(np.concatenate(own)) for own in turns], labeled, turns)
    return Federation(train, test, Parts.of(parts), labeled)


def take_turns(parts: list[NDArray[np.int64]], workers: int) -> tuple[tuple[NDArray[np.int64], ...], ...]:
    """Assign clients to workers in blocks of equal size; returns each worker's lists of images."""
    each, rest = divmod(len(parts), workers)
    if rest or not each:
        raise ConfigError(f"partition.workers={workers} must divide the number of clients, {len(parts)}")
    return tuple(tuple(parts[first : first + each]) for first in range(0, len(parts), each))
