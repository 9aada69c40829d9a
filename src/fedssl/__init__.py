"""Learn one visual encoder from unlabeled images that never leave their owners.

Main entry points:

- `run(...)` trains a federation and returns a `Run`; `resume(path)` continues a stopped run.
- `Run(path)` opens the directory of a run: its encoder, metrics, result and probes.
- `data.partition(labels, ...)` splits a data set among clients.
- `aggregation.build(name, ...)` builds a server rule, which aggregates `Upload`s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedssl.openmp import bound_spinning

bound_spinning()  # before anything imports PyTorch

from fedssl import aggregation, data  # noqa: E402
from fedssl._version import __version__  # noqa: E402

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

if TYPE_CHECKING:
    from fedssl.api import Run, resume, run
    from fedssl.errors import StopRun
    from fedssl.listener import Listener
    from fedssl.state import Upload
else:
    # Import PyTorch only when a name that needs it is used, so that `fedssl --help` is fast. Type
    # checkers do not see this function: they would accept any misspelled name.
    _MODULES = {
        "Listener": "fedssl.listener",
        "Run": "fedssl.api",
        "StopRun": "fedssl.errors",
        "Upload": "fedssl.state",
        "resume": "fedssl.api",
        "run": "fedssl.api",
    }

    def __getattr__(name):
        if name not in _MODULES:
            raise AttributeError(f"module 'fedssl' has no attribute {name!r}")
        import importlib

        value = getattr(importlib.import_module(_MODULES[name]), name)
        globals()[name] = value
        return value
