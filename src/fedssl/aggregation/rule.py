"""What every aggregation rule has in common: uploads are folded in one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from fedssl.options import Choice
from fedssl.state import State, Upload


class Fold(Protocol):
    """An aggregate in the making."""

    def add(self, upload: Upload) -> None:
        """Fold one upload in. Uploads come in the order of client ids, so that sums round the same."""

    def finish(self) -> State:
        """The new global state."""


class Rule(Choice):
    """Turns the previous global state and the uploads of a round into the next global state."""

    def start(self, previous: State) -> Fold:
        """A fold that begins from the previous global state."""
        raise TypeError(f"{type(self).__name__} does not say how it folds uploads")

    def __call__(self, previous: State, uploads: Iterable[Upload]) -> State:
        fold = self.start(previous)
        for upload in sorted(uploads, key=lambda upload: upload.client):
            fold.add(upload)
        return fold.finish()
