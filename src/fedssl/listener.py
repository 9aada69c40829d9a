"""Callbacks: how a run reports its progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedssl.config import Config
from fedssl.data.federation import Federation
from fedssl.errors import StopRun


@dataclass(frozen=True)
class RunInfo:
    """Information about a run at its start."""

    config: Config
    path: Path
    federation: Federation
    earth_movers_distance: float | None
    encoder_parameters: int
    shared_parameters: int
    device: str
    start: int
    warnings: tuple[str, ...]


class Listener:
    """Base class of callbacks. Every method does nothing; override those of interest.

    Pass instances to `fedssl.run(..., listeners=[...])` or `fedssl.resume(..., listeners=[...])`. They are
    called in the process of the server, in this order: `progress`, `started`, `round` after every round,
    `finished`, `close`; `note` at any time.
    """

    def progress(self, done: int, total: int, what: str) -> None:
        """Called repeatedly during long work before the first round.

        Args:
            done: units of work done so far.
            total: units in all.
            what: the kind of work, such as "decoding".
        """

    def started(self, info: RunInfo) -> None:
        """Called once, before the first round (of a resumed run: before its next round).

        Args:
            info: config, folder, images and model sizes of the run.
        """

    def round(self, line: dict[str, Any]) -> None:
        """Called after every round. Raise `fedssl.StopRun(reason)` to end training after this round.

        The run then finishes as usual, with its final probes, encoder and result.json.

        Args:
            line: what metrics.jsonl records of the round: round, loss, clients, failed, seconds, and `probe`
                (knn, feature_std) in rounds that are probed.
        """

    def note(self, text: str) -> None:
        """Called with a message, such as a warning.

        Args:
            text: the message.
        """

    def finished(self, result: dict[str, Any], path: Path) -> None:
        """Called once, after the final probes.

        Args:
            result: the contents of result.json.
            path: the folder of the run.
        """

    def close(self) -> None:
        """Called last, even if the run failed or was interrupted, to release resources."""


class Listeners(Listener):
    """Forwards every call to several listeners."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = listeners

    def progress(self, done: int, total: int, what: str) -> None:
        for listener in self.listeners:
            listener.progress(done, total, what)

    def started(self, info: RunInfo) -> None:
        for listener in self.listeners:
            listener.started(info)

    def round(self, line: dict[str, Any]) -> None:
        """Call all listeners, even if one of them stops the run."""
        stop = None
        for listener in self.listeners:
            try:
                listener.round(line)
            except StopRun as reason:
                stop = stop or reason
        if stop is not None:
            raise stop

    def note(self, text: str) -> None:
        for listener in self.listeners:
            listener.note(text)

    def finished(self, result: dict[str, Any], path: Path) -> None:
        for listener in self.listeners:
            listener.finished(result, path)

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()
