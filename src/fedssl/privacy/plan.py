"""Computes ε for a noise level, or the noise for a budget, before a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedssl.errors import ConfigError
from fedssl.privacy.accountant import epsilon, noise_for
from fedssl.privacy.sampling import sampling

if TYPE_CHECKING:
    from fedssl.config import Config

NOISES = (0.5, 0.7, 1.0, 1.5, 2.5, 5.0)
BUDGETS = (1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class Releases:
    """The releases of a run.

    Attributes:
        rate: probability that a contribution takes part in a release.
        each: releases of a round.
        shared: contributions of a release, on average: noise on their mean is smaller by this factor.
        words: a description of the releases.
    """

    rate: float
    each: int
    shared: int
    words: str


@dataclass(frozen=True)
class Plan:
    """Tables of ε and noise to choose from.

    Attributes:
        heading: the description of the run.
        columns: names of the columns; the first column has the rows' noise multipliers.
        rows: a noise multiplier, then ε by column.
        needed: the noise multiplier by budget, for the rounds of the config.
        shared: contributions that share the noise of a mean.
    """

    heading: str
    columns: list[str]
    rows: list[list[float]]
    needed: dict[float, float]
    shared: int


def plan(config: Config, clients: int = 0, images: int = 0) -> Plan:
    """ε by noise, and noise by budget.

    Args:
        config: its `rounds`, `participation`, `train` and `privacy` are used.
        clients: number of clients; 0: that of the partition.
        images: of the client with the fewest, whose ε is largest; only `privacy.mode=example` needs it.

    Returns:
        ε by noise multiplier and number of rounds, and the noise that budgets need.
    """
    releases = _by_example(config, images) if config.privacy.by_example else _by_client(config, clients)
    rate, each, delta, last = releases.rate, releases.each, config.privacy.delta, config.rounds
    rounds = sorted({max(1, last // 2), last, 2 * last})
    rows = [
        [noise, *(epsilon(rate, noise, each * count, delta) for count in rounds)] for noise in _noises(config)
    ]
    here = [(row[0], row[1 + rounds.index(last)]) for row in rows]
    return Plan(
        f"{releases.words}, δ = {delta:g}",
        ["noise", *(f"{count:,} rounds" if count > 1 else "1 round" for count in rounds)],
        rows,
        {budget: _between(here, budget, rate, each * last, delta) for budget in _budgets(config)},
        releases.shared,
    )


def _by_client(config: Config, clients: int) -> Releases:
    clients = clients or _count(config)
    per_round = config.participation.size(clients)
    rate = per_round / clients
    words = f"{clients:,} clients, {per_round:,} per round (each with probability {rate:.3g})"
    return Releases(rate, 1, per_round, words)


def _by_example(config: Config, images: int) -> Releases:
    """A client that takes part in every round."""
    if not images:
        raise ConfigError(
            "privacy.mode=example: --images N, the number of images of the client with the fewest (its ε is "
            "largest)"
        )
    train = config.train
    release, steps = sampling(images, train.batch_size, train.epochs, 1.0)
    words = (
        f"{images:,} images at a client, {min(train.batch_size, images):,} per step (each with probability "
        f"{release.rate:.3g}), {steps:,} steps per round"
    )
    return Releases(release.rate, steps, min(train.batch_size, images), words)


def _count(config: Config) -> int:
    """The number of clients in the config."""
    sites = getattr(config.engine, "sites", ())
    found = len(sites) or getattr(config.partition, "clients", 0)
    if not found:
        raise ConfigError(
            f"partition.scheme={config.partition.scheme} does not give a number of clients: add --clients N"
        )
    return int(found) + config.privacy.canaries


def _noises(config: Config) -> list[float]:
    own = {config.privacy.noise} - {0.0}
    return sorted({*NOISES, *own})


def _budgets(config: Config) -> list[float]:
    return sorted({*BUDGETS, config.privacy.epsilon} - {0.0})


def _between(
    known: Sequence[tuple[float, float]], budget: float, rate: float, count: int, delta: float
) -> float:
    """Find the noise of a budget, starting from values that are known already."""
    low = max((noise for noise, spent in known if spent > budget), default=0.0)
    high = min((noise for noise, spent in known if spent <= budget), default=0.0)
    return noise_for(budget, rate, count, delta, low, high or None)
