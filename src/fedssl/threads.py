"""Temporary changes of PyTorch's number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
