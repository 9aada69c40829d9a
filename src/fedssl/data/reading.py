"""Many files read in order, by as many threads as pay."""

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
TRIED = 8  # items that are timed first
WORTH_A_THREAD = 5e-4  # seconds: quicker work mostly holds Python's lock, and threads get in its way


class Readers:
    """Threads that stand ready for slow files; quick ones are read here."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.pool = pool

    def read(self, read: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """What `read` makes of every item, in order."""
        began = time.perf_counter()
        results = [read(item) for item in items[:TRIED]]
        slow = time.perf_counter() - began > WORTH_A_THREAD * len(results)
        return [*results, *(self.pool.map if slow else map)(read, items[TRIED:])]


@contextmanager
def readers() -> Iterator[Readers]:
    with ThreadPoolExecutor(THREADS) as pool:
        yield Readers(pool)


def prefetch(batches: Iterator[Any]) -> Iterator[Any]:
    """The same batches; the next one is made in another thread while this one is used."""
    with ThreadPoolExecutor(1) as other:
        coming = other.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = other.submit(next, batches, None)
            yield batch
