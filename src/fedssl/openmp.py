"""How long OpenMP's threads spin before they sleep.

At the end of every parallel loop PyTorch's threads wait for the last one. The GNU OpenMP library lets them
spin for milliseconds, on processors that other programs may need: next to two busy processes on two cores, a
run gets less than half of its fair share. The library reads the limit once, when it is loaded, so it has to
be set before PyTorch is imported. Results do not change.
"""

from __future__ import annotations

import os

# About 0.1 ms: longer than most waits within a training step, shorter than a time slice of the scheduler.
SPINS = 10_000
SET_BY_USERS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


def bound_spinning() -> None:
    """Limit the spinning of this process and its children, unless the user has configured waiting threads."""
    if not any(name in os.environ for name in SET_BY_USERS):
        os.environ["GOMP_SPINCOUNT"] = str(SPINS)
