"""Parallel reading of many files, in order."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

THREADS = min(16, 2 * (os.cpu_count() or 1))
TIMED = 8  # items that are timed first
MIN_SECONDS = 5e-4  # threads do not speed up faster reads, which mostly hold Python's lock


class Readers:
    """A pool of threads for slow reads; fast ones run in the calling thread."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool

    def read(self, read: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Apply `read` to every item; results are in order."""
        began = time.perf_counter()
        results = [read(item) for item in items[:TIMED]]
        slow = time.perf_counter() - began > MIN_SECONDS * len(results)
        return [*results, *(self.pool.map if slow else map)(read, items[TIMED:])]


@contextmanager
def readers() -> Iterator[Readers]:
    with ThreadPoolExecutor(THREADS) as pool:
        yield Readers(pool)


def prefetch(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the same batches; the next one is prepared in another thread while one is used."""
    with ThreadPoolExecutor(1) as other:
        upcoming = other.submit(next, batches, None)
        while (batch := upcoming.result()) is not None:
            upcoming = other.submit(next, batches, None)
            yield batch
