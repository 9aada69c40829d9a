"""Learn one visual encoder from unlabeled images that never leave their owners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedssl import aggregation, data
from fedssl._version import __version__

if TYPE_CHECKING:
    from fedssl.api import Run, resume, run
    from fedssl.state import Upload

__all__ = ["Run", "Upload", "__version__", "aggregation", "data", "resume", "run"]

_HOMES = {"Run": "fedssl.api", "resume": "fedssl.api", "run": "fedssl.api", "Upload": "fedssl.state"}


def __getattr__(name: str) -> Any:
    """Import PyTorch only when something that needs it is asked for: `fedssl --help` answers at once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedssl' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
