"""PyTorch's threads for the duration of some work, and work that runs ahead in a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """Set PyTorch's number of threads inside the block, and restore it afterwards.

    Args:
        count: the number of threads; 0: unchanged, but restored if the block changes it.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_ahead(items: Iterable[Item], depth: int = 2) -> Iterator[Item]:
    """The same items, each computed in a thread while earlier ones are used.

    Args:
        items: computed one after the other, in one thread, so random numbers are drawn in the same order.
        depth: number of items to be ahead at most.

    Raises:
        Exception: any error of computing an item, raised at the position of that item.
    """
    ready: queue.Queue[tuple[Item | None, BaseException | None, bool]] = queue.Queue(depth)
    stopped = threading.Event()

    def offer(item: Item | None, error: BaseException | None = None, last: bool = True) -> None:
        while not stopped.is_set():
            try:
                ready.put((item, error, last), timeout=0.1)
            except queue.Full:
                continue
            return

    def compute() -> None:
        try:
            for item in items:
                offer(item, last=False)
                if stopped.is_set():
                    return
        except BaseException as error:
            offer(None, error)
        else:
            offer(None)

    thread = threading.Thread(target=compute, name="fedssl-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error, last = ready.get()
            if error is not None:
                raise error
            if last:
                return
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join()
