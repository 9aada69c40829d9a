"""PyTorch's threads for the time of a piece of work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """So many threads (0: those that there are, or that the work sets), and afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
