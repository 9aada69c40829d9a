"""The base of all commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A subcommand of `fedssl`: its description, arguments and function."""

    purpose: str
    arguments: Callable[[argparse.ArgumentParser], None]
    do: Callable[[argparse.Namespace], None]


def trust_argument(parser: argparse.ArgumentParser) -> None:
    """Add `--trust` to a command that opens a run, which another person may have made."""
    parser.add_argument(
        "--trust", action="store_true", help="run Python files that the run's config names (see SECURITY.md)"
    )
