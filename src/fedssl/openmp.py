"""How long OpenMP's threads spin before they sleep.

At the end of every parallel loop PyTorch's threads wait for the last one. The GNU OpenMP library lets them
spin for milliseconds, on processors that other programs may need: next to two busy processes on two cores, a
run gets less than half of its fair share. Two measures recover most of it without changing any number:

- Spinning is limited before the library is loaded, which reads the limit once (`bound_spinning`).
- While this process waits for processors, threads go to sleep almost immediately (`sleep_when_busy`). The
  library does so if it has more threads than processors, so additional idle threads are started.

Larger networks need only the first measure. Small ones have loops of microseconds: next to three busy
processes they train five times as fast with the second one.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# About 0.1 ms: longer than most waits within a training step, shorter than a time slice of the scheduler.
SPINS = 10_000
SET_BY_USERS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")

PERIOD = 0.25  # seconds between checks of how long this process waited for a processor
BUSY, IDLE = 0.05, 0.02  # shares of the time: above BUSY this process waits, below IDLE it does not
SURE, CALM = 2, 8  # checks in a row


def bound_spinning() -> None:
    """Limit the spinning of this process and its children, unless the user has configured waiting threads."""
    if not _set_by_user():
        os.environ["GOMP_SPINCOUNT"] = str(SPINS)


def _set_by_user() -> bool:
    given = [name for name in SET_BY_USERS if name in os.environ]
    return bool(given) and os.environ.get("GOMP_SPINCOUNT") != str(SPINS)


# --- shared machines --------------------------------------------------------------------------------


@contextmanager
def sleep_when_busy() -> Iterator[None]:
    """Let OpenMP's threads sleep whenever the calling thread has to wait for a processor.

    Needs Linux and the GNU OpenMP library. Does nothing elsewhere, or if the user has configured waiting.
    """
    delays = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    if _set_by_user() or not sys.platform.startswith("linux") or not delays.exists():
        yield
        return
    stop = threading.Event()
    watch = threading.Thread(target=_watch, args=(delays, stop), name="fedssl-busy", daemon=True)
    watch.start()
    try:
        yield
    finally:
        stop.set()
        watch.join()


def _watch(delays: Path, stop: threading.Event) -> None:
    busy, before, crowd = Busy(), _waited(delays), None
    while not stop.wait(PERIOD):
        now = _waited(delays)
        share, before = (now - before) / PERIOD, now
        if busy.look(share) and crowd is None:
            crowd = Crowd()
        elif not busy.now and crowd is not None:
            crowd.leave()
            crowd = None
    if crowd is not None:
        crowd.leave()


def _waited(delays: Path) -> float:
    """Seconds that a thread was ready to run but had no processor."""
    return int(delays.read_text().split()[1]) / 1e9


class Busy:
    """Tracks whether the machine is busy: after SURE checks in a row; idle again after CALM checks.

    A single wait says nothing: a thread that writes a checkpoint also takes a processor for a moment.
    """

    def __init__(self) -> None:
        self.now = False
        self._busy = self._calm = 0

    def look(self, share: float) -> bool:
        """Update with the share of time spent waiting since the last check; returns whether it is busy."""
        self._busy = self._busy + 1 if share > BUSY else 0
        self._calm = self._calm + 1 if share < IDLE else 0
        self.now = self._busy >= SURE or (self.now and self._calm < CALM)
        return self.now


class Crowd:
    """Idle OpenMP threads, more than there are processors, which keep the others from spinning."""

    def __init__(self) -> None:
        there, self._leave = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._gather, args=(there,), daemon=True)
        self._thread.start()
        there.wait()

    def leave(self) -> None:
        self._leave.set()
        self._thread.join()

    def _gather(self, there: threading.Event) -> None:
        nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)  # free(NULL) does nothing
        threads = len(os.sched_getaffinity(0)) + 1
        for library in loaded():
            # The threads of a parallel section are reused as long as the thread that started it lives.
            library.GOMP_parallel(nothing, None, ctypes.c_uint(threads), ctypes.c_uint(0))
        there.set()
        self._leave.wait()


def loaded() -> list[ctypes.CDLL]:
    """The GNU OpenMP libraries of this process; PyTorch and other packages include their own."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    files = {line.split(maxsplit=5)[5] for line in lines if "/libgomp" in line}
    return [ctypes.CDLL(file) for file in sorted(files)]
