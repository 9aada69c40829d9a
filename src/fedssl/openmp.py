"""How long OpenMP's threads spin before they sleep.

At the end of every parallel loop PyTorch's threads wait for the last one. The GNU OpenMP library lets them
spin for milliseconds, on processors that other programs may need: next to two busy processes on two cores, a
run gets half of its fair share. Two measures recover most of it without changing any number:

- Spinning is limited before the library is loaded, which reads the limit once (`bound_spinning`).
- While this process waits for processors, threads go to sleep almost immediately (`sleep_when_busy`). The
  library does so if it has more threads than processors, so additional idle threads are started.

A thread that slept has to get its processor back soon, or all others wait for it. While the machine is busy,
the process's threads therefore ask Linux (6.12 or newer) for short time slices: the same share in more
pieces, which may begin as soon as a thread wakes up.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# About 0.1 ms: longer than most waits within a training step, shorter than a time slice of the scheduler.
SPINS = 10_000
SET_BY_USERS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")

PERIOD = 0.25  # seconds between checks of how long this process waited for a processor
BUSY, IDLE = 0.05, 0.02  # shares of the time: above BUSY the machine is busy, below IDLE for CALM checks idle
CALM = 8
SLICE = 100_000  # nanoseconds of a slice of time while the machine is busy, the shortest that Linux gives


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
            set_slice(SLICE)
        elif not busy.now and crowd is not None:
            crowd.leave()
            crowd = None
            set_slice(0)
    if crowd is not None:
        crowd.leave()
        set_slice(0)


def _waited(delays: Path) -> float:
    """Seconds that a thread was ready to run but had no processor."""
    return int(delays.read_text().split()[1]) / 1e9


class Busy:
    """Tracks whether the machine is busy: immediately when it is, and idle only after several checks."""

    def __init__(self) -> None:
        self.now = False
        self._calm = 0

    def look(self, share: float) -> bool:
        """Update with the share of time spent waiting since the last check; returns whether it is busy."""
        self._calm = self._calm + 1 if share < IDLE else 0
        self.now = share > BUSY or (self.now and self._calm < CALM)
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


class _Attributes(ctypes.Structure):
    """Linux's `struct sched_attr`."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


ORDINARY = (0, 3)  # SCHED_OTHER and SCHED_BATCH: in other policies `runtime` means something else
# Numbers of the system calls sched_setattr and sched_getattr.
SYSTEM_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}


def set_slice(nanoseconds: int) -> None:
    """Ask for slices of this length for all threads of the process; 0 for the system's own.

    Policy and niceness stay. Does nothing where the system does not offer it.
    """
    numbers = SYSTEM_CALLS.get(platform.machine())
    if numbers is None or not sys.platform.startswith("linux"):
        return
    put, get = numbers
    library = ctypes.CDLL(None)
    for thread in os.listdir("/proc/self/task"):
        given = _Attributes()
        size = ctypes.c_uint(ctypes.sizeof(given))
        if library.syscall(get, int(thread), ctypes.byref(given), size, 0) == 0 and given.policy in ORDINARY:
            given.runtime = nanoseconds
            library.syscall(put, int(thread), ctypes.byref(given), 0)


def loaded() -> list[ctypes.CDLL]:
    """The GNU OpenMP libraries of this process; PyTorch and other packages include their own."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    files = {line.split(maxsplit=5)[5] for line in lines if "/libgomp" in line}
    return [ctypes.CDLL(file) for file in sorted(files)]
