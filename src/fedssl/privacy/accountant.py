"""Computes the privacy that a run has spent: ε for a given δ, by `dp-accounting`.

The guarantee is for neighbors that differ by one whole contribution, added or removed: a
client with all its images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from fedssl.extras import require

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

# Prefix of the spent rounds among the numbers of a server or client: "privacy/spent/0.1/1.0" -> 12.
SPENT = "privacy/spent/"
# Grids of the privacy loss; errors are on the safe side. With little noise, losses are large and a coarse
# grid is fine enough.
FINE, COARSE = 1e-4, 1e-3
# Above this ε, which protects nobody, a bound is enough: a grid for a noise of 0.02 would take 20 GB.
LARGE = 100.0
ORDERS = (*range(2, 64), 128, 256, 512)  # of Rényi's divergence; fractions converge slowly
TOLERANCE = 2e-3  # relative precision of the search for a noise multiplier


@dataclass(frozen=True, order=True)
class Release:
    """One use of the Gaussian mechanism on a random part of the contributions.

    Attributes:
        rate: probability that a contribution takes part (Poisson sampling).
        noise: standard deviation of the noise, in units of the largest norm of a contribution.
    """

    rate: float
    noise: float


@dataclass
class Ledger:
    """The releases and their counts."""

    releases: dict[Release, int] = field(default_factory=dict)

    @classmethod
    def read(cls, values: Mapping[str, float]) -> Ledger:
        """The ledger among the numbers of a server or client."""
        found: dict[Release, int] = {}
        for name, count in values.items():
            if name.startswith(SPENT):
                rate, noise = name.removeprefix(SPENT).split("/")
                found[Release(float(rate), float(noise))] = int(count)
        return cls(found)

    def values(self) -> dict[str, float]:
        """Convert to numbers, which `read` parses."""
        return {f"{SPENT}{each.rate!r}/{each.noise!r}": count for each, count in self.releases.items()}

    def after(self, release: Release, count: int = 1) -> Ledger:
        """The ledger with further releases."""
        return Ledger({**self.releases, release: self.releases.get(release, 0) + count})

    def epsilon(self, delta: float) -> float:
        """ε of all releases so far.

        Args:
            delta: δ of the guarantee.

        Returns:
            ε ≥ 0; infinity if something was released without noise.
        """
        return _epsilon(tuple(sorted(self.releases.items())), delta)


def epsilon(rate: float, noise: float, count: int, delta: float) -> float:
    """ε of identical releases."""
    return Ledger({Release(rate, noise): count}).epsilon(delta)


@lru_cache(maxsize=4096)
def _epsilon(releases: tuple[tuple[Release, int], ...], delta: float) -> float:
    if not releases:
        return 0.0
    if any(not release.noise for release, _ in releases):
        return math.inf
    bound = _rdp_bound(releases, delta)
    if bound > LARGE:
        return bound
    interval = FINE if min(release.noise for release, _ in releases) >= 3 else COARSE
    total = _nothing(interval)
    for release, count in releases:
        total = total.compose(_loss(release, interval).self_compose(count))
    return float(total.get_epsilon_for_delta(delta))


def _rdp_bound(releases: tuple[tuple[Release, int], ...], delta: float) -> float:
    """An upper bound on ε from Rényi differential privacy, which is fast however little noise there is."""
    require_accountant("privacy accounting")
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(ORDERS)
    for release, count in releases:
        accountant.compose(PoissonSampledDpEvent(release.rate, GaussianDpEvent(release.noise)), count)
    return float(accountant.get_epsilon(delta))


def _nothing(interval: float) -> PrivacyLossDistribution:
    """The privacy loss of releasing nothing."""
    require_accountant("privacy accounting")
    from dp_accounting.pld.privacy_loss_distribution import identity

    return identity(interval)


@lru_cache(maxsize=16)
def _loss(release: Release, interval: float) -> PrivacyLossDistribution:
    """The privacy loss of one release; cached, because it is slow and the same in every round."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    return from_gaussian_mechanism(
        release.noise, value_discretization_interval=interval, sampling_prob=release.rate
    )


def noise_for(
    budget: float, rate: float, count: int, delta: float, low: float = 0.0, high: float | None = None
) -> float:
    """The smallest noise multiplier with which `count` releases stay within a budget.

    Args:
        budget: the largest ε.
        rate: probability that a contribution takes part in a release.
        count: number of releases.
        delta: δ of the guarantee.
        low: a noise multiplier that is known to be too small.
        high: one that is known to be large enough.

    Returns:
        A noise multiplier whose ε is at most the budget, and at most 0.2 % more than is needed.
    """
    if budget <= 0:
        raise ValueError(f"a budget of ε = {budget:g} cannot be met")
    if high is None:
        high = max(1.0, 2 * low)
        while epsilon(rate, high, count, delta) > budget:
            low, high = high, 2 * high
    while high - low > TOLERANCE * high:
        middle = (low + high) / 2
        within = epsilon(rate, middle, count, delta) <= budget
        low, high = (low, middle) if within else (middle, high)
    return math.ceil(high * 1e4) / 1e4


def releases_for(budget: float, rate: float, noise: float, delta: float, most: int = 1_000_000) -> int:
    """The number of releases that a budget allows."""
    if epsilon(rate, noise, 1, delta) > budget:
        return 0
    low, high = 1, 2
    while high <= most and epsilon(rate, noise, high, delta) <= budget:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon(rate, noise, middle, delta) <= budget else (low, middle)
    return low


def require_accountant(what: str) -> None:
    """A ConfigError unless dp-accounting is installed."""
    require("dp_accounting", "privacy", what)
