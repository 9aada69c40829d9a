"""Packages that need not be there."""

from __future__ import annotations

import importlib.util


def installed(package: str) -> bool:
    """Whether it can be imported; a folder that it left behind when it was removed does not count."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None
