"""What a run tells the world outside while it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedssl.config import Config
from fedssl.data.federation import Federation


@dataclass(frozen=True)
class RunInfo:
    """What is known when a run begins."""

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
    """Hears of everything and does nothing: what `--quiet` shows."""

    def progress(self, done: int, total: int, what: str) -> None:
        """Long work before the first round."""

    def started(self, info: RunInfo) -> None:
        """The first round is about to begin (or the first after a resume)."""

    def round(self, line: dict[str, Any]) -> None:
        """A round ended; `line` is what metrics.jsonl has of it."""

    def note(self, text: str) -> None:
        """Something worth a line."""

    def finished(self, result: dict[str, Any], path: Path) -> None:
        """The run is complete."""

    def close(self) -> None:
        """The run ended, one way or the other."""


class Listeners(Listener):
    """Several that hear the same."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = listeners

    def progress(self, done: int, total: int, what: str) -> None:
        for listener in self.listeners:
            listener.progress(done, total, what)

    def started(self, info: RunInfo) -> None:
        for listener in self.listeners:
            listener.started(info)

    def round(self, line: dict[str, Any]) -> None:
        for listener in self.listeners:
            listener.round(line)

    def note(self, text: str) -> None:
        for listener in self.listeners:
            listener.note(text)

    def finished(self, result: dict[str, Any], path: Path) -> None:
        for listener in self.listeners:
            listener.finished(result, path)

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()
