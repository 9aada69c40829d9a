"""What every command has in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


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
