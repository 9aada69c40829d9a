"""The number of threads of each client of a round, and the order in which clients start.

Clients usually train `engine.wave` at a time with `engine.threads` threads each. A client that would be left
over at the end of a round, or that all others would wait for, trains with the threads of the workers that
would be idle. Without this, two workers take longer than one process for three or five clients of equal size.

Convolutions round differently with another number of threads. The plan therefore depends only on the two
settings and the clients' numbers of images, not on the number of workers or on which of them is idle.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

# With half of the threads a client takes 2^0.88 = 1.84 times as long (ResNet-8 of width 16, two cores).
SPEEDUP = 0.88
# Uploads are aggregated in the order of client ids, and wait in memory for those before them. Clients are
# reordered only within this many waves, so that memory does not grow with the clients of a round.
WINDOW = 8


@dataclass(frozen=True)
class Slot:
    """The start position and the number of threads of a client.

    Attributes:
        threads: threads the client trains with.
        turn: clients with lower turns start first.
    """

    threads: int
    turn: int


def schedule(images: Sequence[int], threads: int, wave: int) -> list[Slot]:
    """Plan a round.

    Args:
        images: number of images of each client of the round.
        threads: threads of a client that trains in a full wave.
        wave: number of clients that train at the same time.

    Returns:
        A slot for each client.
    """
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
    """Split clients into small waves that share all threads and the rest, which train `wave` at a time.

    Returns:
        The small waves and the rest, largest clients first. As many of the largest clients are in small waves
        as make the round shortest.
    """
    order = sorted(range(len(images)), key=lambda client: (-images[client], client))
    sizes = [images[client] for client in order]
    # Whole numbers: where two plans take the same time, every machine chooses the same one.
    total = threads * wave
    pace = [round(1000 * (total / (total // size)) ** SPEEDUP) for size in range(1, wave + 1)]
    best = [(0, 0)]  # for the n largest clients in small waves: their time, and the size of the last wave
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
    """The time until `wave` workers have finished clients of these sizes; idle workers take the next one."""
    loads = [0] * wave
    for size in sizes:
        heapq.heapreplace(loads, loads[0] + size)
    return max(loads)
