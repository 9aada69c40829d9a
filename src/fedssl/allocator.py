"""Keep freed memory in the process while it trains.

A training step allocates its activations and frees them. By default the C library returns freed memory to
the system, which zeroes every page again before the next step can use it. On a CPU this takes more than a
tenth of the step (docs/performance.md).
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Names and values from malloc.h of the GNU C library.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_MMAP, KEPT_TRIM = 2**30, 2**31 - 1
USUAL_MMAP, USUAL_TRIM = 2**25, 2**26  # the library's own values in a training process

_lock = threading.Lock()
_depth = 0


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Reuse freed memory inside the block, and return it to the system afterwards.

    It needs the GNU C library, and does nothing elsewhere. It affects the whole process: with nested or
    concurrent blocks, memory is returned when the last one ends.
    """
    library = _library()
    _change(1, library)
    try:
        yield
    finally:
        _change(-1, library)


def _change(by: int, library: ctypes.CDLL | None) -> None:
    global _depth
    with _lock:
        _depth += by
        if library is None:
            return
        if _depth == by == 1:
            library.mallopt(M_MMAP_THRESHOLD, KEPT_MMAP)
            library.mallopt(M_TRIM_THRESHOLD, KEPT_TRIM)
        elif _depth == 0:
            library.mallopt(M_MMAP_THRESHOLD, USUAL_MMAP)
            library.mallopt(M_TRIM_THRESHOLD, USUAL_TRIM)
            library.malloc_trim(0)


def _library() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
