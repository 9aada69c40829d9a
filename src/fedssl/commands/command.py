"""What every command has in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedssl.progress import Progress


@dataclass(frozen=True)
class Command:
    """One word after `fedssl`: what it is for, its arguments, and what it does."""

    purpose: str
    arguments: Callable[[argparse.ArgumentParser], None]
    do: Callable[[argparse.Namespace], None]


def trust_argument(parser: argparse.ArgumentParser) -> None:
    """`--trust`, for commands that open a run which somebody else may have made."""
    parser.add_argument(
        "--trust", action="store_true", help="run Python files that the run's config names (see SECURITY.md)"
    )


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar for slow work; gone when the work is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)
