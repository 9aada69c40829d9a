"""Reuse of freed memory, measured by the system's page faults."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json, resource
import numpy as np
from fedssl.allocator import keep_freed_memory

def faults():
    "Page faults while an array of 64 MB comes and goes, once some have found their place."
    for _ in range(4):
        np.ones(2**23)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        np.ones(2**23)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 4

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])

usual = faults()
with keep_freed_memory():
    kept = faults()
    with keep_freed_memory():
        pass
    nested = faults()
    held = resident()
print(json.dumps([usual, kept, nested, held - resident()]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="for the GNU C library")
def test_freed_memory_is_reused_and_returned_at_the_end() -> None:
    pages = 2**26 // 4096
    small_pages = os.environ | {"NUMPY_MADVISE_HUGEPAGE": "0"}
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=small_pages
    )
    usual, kept, nested, given_back = json.loads(answer.stdout)
    assert usual > 0.9 * pages
    assert kept < 0.1 * pages
    assert nested < 0.1 * pages
    assert given_back > 0.9 * pages
