"""A bar for long work outside of a run; nothing where nobody watches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedssl.data.sets import Progress as Told


@contextmanager
def bar() -> Iterator[Told]:
    """Give what comes out to slow work as its `progress`. It is drawn on standard error, and goes again."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task("")

        def told(done: int, total: int, what: str) -> None:
            shown.update(task, completed=done, total=total, description=what)

        yield told
