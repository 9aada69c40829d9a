"""Learn one visual encoder from unlabeled images that never leave their owners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedssl import aggregation, data

if TYPE_CHECKING:
    from fedssl.api import Run, resume, run
    from fedssl.errors import StopRun
    from fedssl.report.listener import Listener
    from fedssl.state import Upload

__version__ = "0.1.0"
__all__ = [
    "Listener",
    "Run",
    "StopRun",
    "Upload",
    "__version__",
    "aggregation",
    "data",
    "resume",
    "run",
]

_HOMES = {
    "Listener": "fedssl.report.listener",
    "Run": "fedssl.api",
    "StopRun": "fedssl.errors",
    "Upload": "fedssl.state",
    "resume": "fedssl.api",
    "run": "fedssl.api",
}


def __getattr__(name: str) -> Any:
    """Import PyTorch only when something that needs it is asked for: `fedssl --help` answers at once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedssl' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
