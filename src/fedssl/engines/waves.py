"""How many threads each client of a round trains with, and in which order clients begin.

Clients train in waves: those of a wave train at the same time and share all threads. A client that would be
alone at the end of a round, or that is larger than others together, so gets the threads of workers that would
have nothing to do. Convolutions round differently with another number of threads, so the plan depends on
`engine.threads`, `engine.wave` and the numbers of images alone: not on how many workers there are, nor on
which of them is idle at a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# A client with half of the threads takes 2^0.88 = 1.84 times as long (ResNet-8 of width 16, two cores).
SPEEDUP = 0.88
# Uploads are folded in the order of clients, and who begins in another order is waited for: of so many waves
# at the most, so that memory does not grow with the clients of a round.
WINDOW = 8


@dataclass(frozen=True)
class Place:
    """A client's place in the plan of a round."""

    threads: int
    turn: int  # those of lower turns begin before


def places(images: Sequence[int], threads: int, wave: int) -> list[Place]:
    """The plan for clients with so many images each: `wave` of them at once, each with so many threads."""
    found: dict[int, Place] = {}
    for first in range(0, len(images), WINDOW * wave):
        for together in waves(images[first : first + WINDOW * wave], threads, wave):
            share = threads * wave // len(together)
            for client in together:
                found[first + client] = Place(share, len(found))
    return [found[client] for client in range(len(images))]


def waves(images: Sequence[int], threads: int, wave: int) -> list[list[int]]:
    """Clients, the largest first, cut into waves so that the round takes the least time."""
    order = sorted(range(len(images)), key=lambda client: (-images[client], client))
    # In whole numbers, which round nowhere: where two plans take the same time, every machine takes the same.
    pace = [
        round(1000 * (threads * wave / (threads * wave // size)) ** SPEEDUP) for size in range(1, wave + 1)
    ]
    best = [(0, 0)]  # for the first clients of the order: how long they take, and the size of their last wave
    for end in range(1, len(order) + 1):
        best.append(
            min(
                (best[end - size][0] + images[order[end - size]] * pace[size - 1], size)
                for size in range(1, min(wave, end) + 1)
            )
        )
    found: list[list[int]] = []
    while order:
        size = best[len(order)][1]
        found.append(order[-size:])
        del order[-size:]
    return found[::-1]
