"""Memory that is freed and used again, counted in the system's page faults."""

import resource
import sys

import pytest
import torch

from fedssl.allocator import freed_memory_kept

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="for the GNU C library")
PAGES = 2**26 // 4096  # of one tensor below


def faults(rounds: int = 4) -> int:
    """Page faults while tensors of 64 MB come and go, once a few of them have found their place."""
    for _ in range(4):
        torch.ones(2**24)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        torch.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])


def test_pages_are_used_again() -> None:
    with freed_memory_kept():
        kept = faults()
    assert kept < PAGES / 10
    assert faults() > 3 * PAGES  # as a process that trains has it without


def test_what_is_free_goes_back_in_the_end() -> None:
    with freed_memory_kept():
        with freed_memory_kept():
            torch.ones(2**24)
        held = resident()
        assert faults() < PAGES / 10  # the inner one has changed nothing
    assert resident() < held - 0.9 * PAGES
