"""Partitions by Dirichlet draws: over clients for each class, or over classes for each client."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedssl.data.partition_base import SCHEME, Indices, Partition, Pool, deal_groups, split_evenly
from fedssl.errors import DataError


class Dirichlet(Partition):
    """Each class is split among clients by a Dirichlet(α) draw; client sizes vary (L-DAWA, §4.1).

    Draws in which a client has fewer than `min_size` images are repeated, up to `tries` times.
    """

    scheme: str = Field("dirichlet", description=SCHEME)
    alpha: float = Field(0.1, gt=0, description="concentration (α): small is heterogeneous")
    min_size: int = Field(1, ge=1, description="smallest number of images of a client")
    tries: int = Field(20_000, ge=1, description="largest number of draws")

    def deal(self, pool: Pool, rng: np.random.Generator) -> list[Indices]:
        if self.min_size * self.clients > pool.count:
            raise DataError(
                f"partition.min_size={self.min_size} × {self.clients} clients need "
                f"{self.min_size * self.clients} images, but there are {pool.count}"
            )
        groups = self.by_class(pool, rng)
        amounts, best = draw(groups, self.clients, self.alpha, self.min_size, np.inf, self.tries, rng)
        if amounts is None:
            raise DataError(
                f"Dirichlet(α={self.alpha:g}) over {self.clients} clients and {len(groups)} classes left a "
                f"client with fewer than {self.min_size} images in each of {self.tries} tries (best: "
                f"{best.min()}): raise partition.alpha, lower partition.min_size or use fewer clients"
            )
        return deal_groups(groups, amounts)


class DirichletBounded(Partition):
    """Dirichlet(α) over clients for each class, drawn until client sizes are near N/K (Dec-SSL, §C.2).

    For K=5 and ten equal classes about one draw in eight is within ±50 % at α=0.02. With many clients and
    few classes practically none is. `sampler=chain` then samples from the same distribution (Dirichlet(α),
    conditioned on the sizes) by Markov chain Monte Carlo.
    """

    scheme: str = Field("dirichlet-bounded", description=SCHEME)
    alpha: float = Field(0.1, gt=0, description="concentration (α): small is heterogeneous")
    tolerance: float = Field(
        0.5, gt=0, description="largest deviation of a client's size from N/K, as a share of N/K"
    )
    tries: int = Field(20_000, ge=1, description="largest number of draws")
    sampler: Literal["rejection", "chain"] = Field(
        "rejection",
        description="rejection: draw until sizes fit; chain: a Markov chain over partitions that fit",
    )

    def deal(self, pool: Pool, rng: np.random.Generator) -> list[Indices]:
        groups = self.by_class(pool, rng)
        mean = pool.count / self.clients
        least, most = max(mean * (1 - self.tolerance), 1.0), mean * (1 + self.tolerance)
        if self.sampler == "chain":
            return deal_groups(groups, walk(groups, self.clients, self.alpha, least, most, rng))
        amounts, best = draw(groups, self.clients, self.alpha, least, most, self.tries, rng)
        if amounts is None:
            raise DataError(
                f"Dirichlet(α={self.alpha:g}) over {self.clients} clients and {len(groups)} classes gave no "
                f"client sizes within {least:.0f}…{most:.0f} images (N/K ± {self.tolerance:.0%}) in "
                f"{self.tries} tries; the best were {best.min()}…{best.max()}: raise partition.tolerance, "
                "partition.tries or partition.alpha, use fewer clients, or partition.sampler=chain"
            )
        return deal_groups(groups, amounts)


def draw(
    groups: list[Indices],
    clients: int,
    alpha: float,
    least: float,
    most: float,
    tries: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.int64] | None, Indices]:
    """Draw amounts [client, class] with client sizes in `least`…`most`; also returns the best sizes.

    The amounts are None if no draw fits.
    """
    supply = np.array([len(group) for group in groups])
    concentration = np.full(clients, alpha)
    done, batch, nearest, best = 0, 1, np.inf, np.zeros(clients, dtype=np.int64)
    while done < tries:
        shares = rng.dirichlet(concentration, size=(batch, len(groups)))
        ends = np.rint(np.cumsum(shares, axis=2) * supply[:, None]).astype(np.int64)
        ends[:, :, -1] = supply
        amounts = np.diff(ends, axis=2, prepend=0)
        sizes = amounts.sum(1)
        miss = np.maximum(least - sizes.min(1), sizes.max(1) - most)
        first = int(np.argmax(miss <= 0)) if (miss <= 0).any() else int(np.argmin(miss))
        if miss[first] < nearest:
            nearest, best = miss[first], sizes[first]
        if nearest <= 0:
            return amounts[first].T, best
        done += batch
        # Most requests succeed at once; draw in growing batches otherwise, in bounded memory.
        batch = min(batch * 4, tries - done, max(1, 2_000_000 // (clients * len(groups))))
    return None, best


SWEEPS = 100  # over all classes; statistics of partitions converge within fifty


def walk(
    groups: list[Indices],
    clients: int,
    alpha: float,
    least: float,
    most: float,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Draw amounts [client, class] from Dirichlet(α), conditioned on client sizes in `least`…`most`.

    Gibbs sampling: the images of a class at two clients are split again by Beta(α, α), unless a client's size
    would leave the bounds. The chain starts from equal shares, which are within the bounds. Pairs of clients
    are disjoint, so that all of them are updated at once.
    """
    amounts = np.zeros((len(groups), clients), dtype=np.int64)
    for own, group in zip(amounts, groups, strict=True):
        # The remainder goes to the clients with the fewest images.
        own[np.argsort(amounts.sum(0), kind="stable")] = split_evenly(len(group), clients)
    sizes = amounts.sum(0)
    if sizes.min() < least or sizes.max() > most:
        raise DataError(
            f"{sizes.min()}…{sizes.max()} images are as equal as the sizes of {clients} clients can be, but "
            f"not within {least:.1f}…{most:.1f}: raise partition.tolerance"
        )
    half = clients // 2
    for _ in range(SWEEPS):
        for own in amounts:
            order = rng.permutation(clients)
            a, b = order[:half], order[half : 2 * half]
            both = own[a] + own[b]
            moved = np.rint(both * rng.beta(alpha, alpha, half)).astype(np.int64) - own[a]
            after = np.stack([sizes[a] + moved, sizes[b] - moved])
            moved[(after.min(0) < least) | (after.max(0) > most)] = 0
            own[a] += moved
            own[b] -= moved
            sizes[a] += moved
            sizes[b] -= moved
    return amounts.T


class DirichletEqual(Partition):
    """Each client's classes follow its own Dirichlet(β) draw; all clients have equal size (FedStyle).

    Every image is assigned. If a class is exhausted, clients share it in proportion to their draws, and take
    the rest from the other classes in their remaining proportions.
    """

    scheme: str = Field("dirichlet-equal", description=SCHEME)
    beta: float = Field(0.5, gt=0, description="concentration (β): small is heterogeneous")

    def deal(self, pool: Pool, rng: np.random.Generator) -> list[Indices]:
        groups = self.by_class(pool, rng)
        wants = rng.dirichlet(np.full(len(groups), self.beta), size=self.clients)
        supply = np.array([len(group) for group in groups])
        return deal_groups(groups, fill(wants, split_evenly(pool.count, self.clients), supply, rng))


def fill(
    wants: NDArray[np.float64], sizes: Indices, supply: Indices, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Integer amounts [client, class] with row sums `sizes`, within `supply`, close to `wants`."""
    amounts = np.zeros(wants.shape)
    for _ in range(len(supply) + 1):  # each pass meets all needs or empties a class
        need, left = sizes - amounts.sum(1), supply - amounts.sum(0)
        left[left < 1e-9 * supply.sum()] = 0
        share = wants * (left > 0)
        nothing_wanted = share.sum(1) < 1e-300
        share[nothing_wanted] = left
        if not left.any() or need.max() < 1e-9:
            break
        demand = need[:, None] * share / share.sum(1, keepdims=True)
        asked = demand.sum(0)
        amounts += demand * np.divide(left, asked, out=np.ones_like(left), where=asked > left)
    return _whole(amounts, sizes, supply, rng)


def _whole(
    amounts: NDArray[np.float64], sizes: Indices, supply: Indices, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Round down, then draw the missing images of each client by its lost fractions."""
    whole = np.floor(amounts + 1e-6).astype(np.int64)
    lost = np.maximum(amounts - whole, 0)
    left = supply - whole.sum(0)
    for client in rng.permutation(len(sizes)):
        for _ in range(sizes[client] - whole[client].sum()):
            chance = lost[client] * (left > 0)
            if chance.sum() < 1e-12:
                chance = left.astype(np.float64)
            group = rng.choice(len(supply), p=chance / chance.sum())
            whole[client, group] += 1
            left[group] -= 1
            lost[client, group] = 0
    return whole
