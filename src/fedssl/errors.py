"""Errors a person can act on: shown as one line by the command, never as a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedsslError(Exception):
    """Something the user can put right; its text says what and how."""

    exit_code = 1


class ConfigError(FedsslError):
    """A key or value of the configuration is wrong."""

    exit_code = 2


class DataError(FedsslError):
    """The images cannot be read, or cannot be used as asked."""


class RunError(FedsslError):
    """A run cannot go on, be resumed or be evaluated."""


class StopRun(Exception):
    """Raised in `Listener.round` to end training after that round; its text says why."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """'; did you mean simclr' for a near miss, else the list of what exists."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}"
    return "known: " + ", ".join(names) if names else "nothing of that kind exists"
