"""Partitions by whole classes: IID, some classes, one class, or a blend of sorted and shuffled images."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedssl.data.partition_base import SCHEME, Indices, Partition, Pool, deal_groups, split_evenly
from fedssl.errors import DataError


class IID(Partition):
    """Shuffled images; client sizes differ by at most one. Needs no labels."""

    scheme: str = Field("iid", description=SCHEME)

    def deal(self, pool: Pool, rng: np.random.Generator) -> list[Indices]:
        return np.array_split(rng.permutation(pool.count), self.clients)


class Classes(Partition):
    """l classes per client (FedEMA, §B.1): each class is split into K·l/C sets, each client gets l sets.

    A client gets l random sets of different classes. If K·l is not a multiple of C, the largest classes are
    split into one more set than the others, and the small sets are spread evenly over the clients. Every
    image is assigned. With l = C every client has all classes.
    """

    scheme: str = Field("classes", description=SCHEME)
    classes: int = Field(2, ge=1, description="number of classes per client (l)")

    def deal(self, pool: Pool, rng: np.random.Generator) -> list[Indices]:
        groups = self.by_class(pool, rng)
        supply = np.array([len(group) for group in groups])
        sets = self._sets(supply, rng)
        held = _assign(sets, self.clients, self.classes, rng)
        amounts = held * (supply // sets)
        for group in range(len(groups)):
            # Images left over after the cut go to holders of the class that have the fewest so far.
            holders = rng.permutation(np.flatnonzero(held[:, group]))
            poorest = holders[np.argsort(amounts[holders].sum(1), kind="stable")]
            amounts[poorest[: supply[group] % sets[group]], group] += 1
        return deal_groups(groups, amounts)

    def _sets(self, supply: Indices, rng: np.random.Generator) -> Indices:
        """The number of sets of each class."""
        classes, total = len(supply), self.clients * self.classes
        if self.classes > classes:
            raise DataError(
                f"partition.classes={self.classes}, but the data set has {classes} classes: "
                f"use at most partition.classes={classes}"
            )
        if total < classes:
            raise DataError(
                f"{self.clients} clients × {self.classes} classes = {total} sets do not cover {classes} "
                f"classes: use at least partition.classes={-(-classes // self.clients)}, or more clients"
            )
        largest_first = np.lexsort((rng.permutation(classes), -supply))
        sets = np.empty(classes, dtype=np.int64)
        sets[largest_first] = split_evenly(total, classes)
        short = int(np.argmin(supply - sets))
        if supply[short] < sets[short]:
            raise DataError(
                f"{self.clients} clients × {self.classes} classes need {sets[short]} sets of every class, "
                f"but one class has only {supply[short]} images: use fewer clients or more images"
            )
        return sets


def _assign(sets: Indices, clients: int, classes: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return `held[client, class]`: each client has `classes` classes, each class occurs `sets` times."""
    held = np.zeros((clients, len(sets)), dtype=bool)
    # Each class goes to the clients with the most room left, which cannot run into a dead end.
    for group in np.lexsort((rng.permutation(len(sets)), sets)):
        room = classes - held.sum(1)
        emptiest = np.lexsort((rng.permutation(clients), -room))
        held[emptiest[: sets[group]], group] = True
    # That favors some assignments. Pairs of clients therefore shuffle the classes that only one of
    # them has, which makes all assignments equally likely and does not change client sizes.
    alike = [np.flatnonzero(sets == number) for number in np.unique(sets)]
    for _ in range(10 * clients if clients > 1 else 0):
        a, b = rng.choice(clients, 2, replace=False)
        for group in alike:
            differ = group[held[a, group] != held[b, group]]
            held[a, differ] = rng.permutation(held[a, differ])
            held[b, differ] = ~held[a, differ]
    return held


class OneClass(Partition):
    """One class per client, equal sizes (W/Sc of L-DAWA, §5.3): client k has class k mod C."""

    scheme: str = Field("one-class", description=SCHEME)
    equal: bool = Field(
        True,
        description="leave out images of larger classes so that clients have equal sizes; false: assign all",
    )

    def deal(self, pool: Pool, rng: np.random.Generator) -> list[Indices]:
        groups = self.by_class(pool, rng)
        each, rest = divmod(self.clients, len(groups))
        if rest or not each:
            near = max(each, 1) * len(groups)
            raise DataError(
                f"partition.scheme=one-class: {self.clients} clients are not a multiple of {len(groups)} "
                f"classes: use partition.clients={near}"
            )
        smallest = min(len(group) for group in groups) // each
        if smallest == 0:
            raise DataError(
                f"partition.scheme=one-class: {each} clients share each class, but one class has only "
                f"{min(len(group) for group in groups)} images: use fewer clients or more images"
            )
        pieces = [np.array_split(group, each) for group in groups]
        parts = [pieces[client % len(groups)][client // len(groups)] for client in range(self.clients)]
        return [part[:smallest] for part in parts] if self.equal else parts


class Skew(Partition):
    """A share β of every class IID, the rest sorted by label and split into blocks (Dec-SSL, §C.2).

    Blocks are whole classes (with β = 0 no class is on two clients), as equal in size as possible. With more
    clients than classes, blocks have equal size and clients share classes.
    """

    scheme: str = Field("skew", description=SCHEME)
    beta: float = Field(0.0, ge=0, le=1, description="share of the images that is assigned IID (β)")

    def deal(self, pool: Pool, rng: np.random.Generator) -> list[Indices]:
        groups = self.by_class(pool, rng)
        shared = [round(self.beta * len(group)) for group in groups]
        iid = rng.permutation(np.concatenate([group[:n] for group, n in zip(groups, shared, strict=True)]))
        rest = [group[n:] for group, n in zip(groups, shared, strict=True) if len(group) > n]
        blocks = _blocks(rest, self.clients)
        # The remainder of the IID share goes to the clients with the smallest blocks.
        order = np.argsort([len(block) for block in blocks], kind="stable")
        sizes = np.empty(self.clients, dtype=np.int64)
        sizes[order] = split_evenly(len(iid), self.clients)
        extra = np.split(iid, np.cumsum(sizes)[:-1])
        return [np.concatenate(both) for both in zip(blocks, extra, strict=True)]


def _blocks(groups: list[Indices], clients: int) -> list[Indices]:
    """Split the sequence of groups into one block per client, between groups if there are enough."""
    row = np.concatenate([*groups, np.empty(0, dtype=np.int64)])
    if clients > len(groups):
        return np.array_split(row, clients)
    ends = np.cumsum([len(group) for group in groups])
    cuts: list[int] = []
    first = 0
    for block in range(1, clients):
        # Leave at least one group for every block that follows.
        allowed = ends[first : len(groups) - (clients - block)]
        first += int(np.argmin(np.abs(allowed - block * len(row) / clients)))
        cuts.append(int(ends[first]))
        first += 1
    return np.split(row, cuts)
