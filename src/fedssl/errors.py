"""Errors that users can fix; the command line shows them as one line, without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedsslError(Exception):
    """Base class of errors that the user can fix; the message says how."""

    exit_code = 1


class ConfigError(FedsslError):
    """Raised for a wrong key or value in the configuration."""

    exit_code = 2


class DataError(FedsslError):
    """Raised for images that cannot be read or used."""


class RunError(FedsslError):
    """Raised if a run cannot be continued, resumed or evaluated."""


class StopRun(Exception):
    """Raised in `Listener.round` to end training after that round; the message says why."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggest the closest name, or list all known names."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}"
    return "known: " + ", ".join(names) if names else "there are no names to choose from"
