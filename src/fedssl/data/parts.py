"""The images of all clients in two arrays: a million clients take megabytes, not an object each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class Parts(Sequence[Indices]):
    """Indices of images, client by client.

    Args:
        indices: the images of all clients, one client after another.
        sizes: the number of images of each client.
    """

    def __init__(self, indices: Indices, sizes: Indices) -> None:
        self.indices, self.sizes = indices, sizes
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    @classmethod
    def of(cls, parts: Sequence[Indices]) -> Parts:
        if isinstance(parts, Parts):
            return parts
        sizes = np.fromiter((len(part) for part in parts), dtype=np.int64, count=len(parts))
        empty = np.empty(0, dtype=np.int64)
        return cls(np.concatenate([empty, *parts]).astype(np.int64, copy=False), sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, client: int) -> Indices: ...

    @overload
    def __getitem__(self, client: slice) -> list[Indices]: ...

    def __getitem__(self, client: int | slice) -> Indices | list[Indices]:
        if isinstance(client, slice):
            return [self[number] for number in range(*client.indices(len(self)))]
        number = range(len(self))[client]  # an IndexError beyond the last
        return self.indices[self._starts[number] : self._starts[number + 1]]

    def counts(self, values: Indices, kinds: int) -> Indices:
        """Number of images [client, value] of each client, by a value of each image from 0 to `kinds`."""
        owner = np.repeat(np.arange(len(self)), self.sizes)
        found = np.bincount(owner * kinds + values[self.indices], minlength=len(self) * kinds)
        return found.reshape(len(self), kinds).astype(np.int64, copy=False)
