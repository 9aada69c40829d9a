"""How many threads each client of a round trains with, and in which order clients begin.

Most clients train `engine.wave` at a time with `engine.threads` each. Fewer at a time share the same threads:
one that would be left over at the end of a round, or that others would wait for, gets the threads of workers
that would have nothing to do. Convolutions round differently with another number of threads, so the plan
depends on these two settings and the numbers of images alone: not on how many workers there are, nor on which
of them is idle at a moment.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

# A client with half of the threads takes 2^0.88 = 1.84 times as long (ResNet-8 of width 16, two cores).
SPEEDUP = 0.88
# Uploads are folded in the order of clients, and who begins in another order is waited for: of so many waves
# at the most, so that memory does not grow with the clients of a round.
WINDOW = 8


@dataclass(frozen=True)
class Slot:
    """A client's place in the plan of a round."""

    threads: int
    turn: int  # those of lower turns begin before


def schedule(images: Sequence[int], threads: int, wave: int) -> list[Slot]:
    """The plan for clients with so many images each."""
    found: dict[int, Slot] = {}
    for first in range(0, len(images), WINDOW * wave):
        sharing, others = split_into_waves(images[first : first + WINDOW * wave], threads, wave)
        for together in sharing:
            for client in together:
                found[first + client] = Slot(threads * wave // len(together), len(found))
        for client in others:
            found[first + client] = Slot(threads, len(found))
    return [found[client] for client in range(len(images))]


def split_into_waves(images: Sequence[int], threads: int, wave: int) -> tuple[list[list[int]], list[int]]:
    """Waves of fewer clients, and those that train `wave` at a time; the largest first.

    The largest clients are in small waves, as many of them as make the round shortest.
    """
    order = sorted(range(len(images)), key=lambda client: (-images[client], client))
    sizes = [images[client] for client in order]
    # In whole numbers, which round nowhere: where two plans take the same time, every machine takes the same.
    total = threads * wave
    pace = [round(1000 * (total / (total // size)) ** SPEEDUP) for size in range(1, wave + 1)]
    best = [(0, 0)]  # of the largest clients in small waves: how long they take, and how many the last has
    for end in range(1, len(order) + 1):
        best.append(
            min(
                (best[end - size][0] + sizes[end - size] * pace[size - 1], size)
                for size in range(1, min(max(1, wave - 1), end) + 1)
            )
        )
    end = min(range(len(best)), key=lambda end: best[end][0] + pace[-1] * makespan(sizes[end:], wave))
    sharing, others = list[list[int]](), order[end:]
    while end:
        size = best[end][1]
        sharing.insert(0, order[end - size : end])
        end -= size
    return sharing, others


def makespan(sizes: Sequence[int], wave: int) -> int:
    """What the busiest of so many workers has to do if whoever is done takes the next client."""
    loads = [0] * wave
    for size in sizes:
        heapq.heapreplace(loads, loads[0] + size)
    return max(loads)
