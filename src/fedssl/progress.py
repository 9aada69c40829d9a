"""Progress of slow work: the callback that reports it, and a bar on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """The callback of slow steps."""

    def __call__(self, done: int, total: int, what: str) -> None: ...


@contextmanager
def bar() -> Iterator[Progress]:
    """Create a callback that draws a progress bar on standard error, if that is a terminal."""
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as shown:
        task = shown.add_task("")

        def update(done: int, total: int, what: str) -> None:
            shown.update(task, completed=done, total=total, description=what)

        yield update
