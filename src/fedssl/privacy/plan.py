"""What a budget needs and what noise gives, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedssl.errors import ConfigError
from fedssl.privacy.accountant import epsilon, noise_for

if TYPE_CHECKING:
    from fedssl.config import Config

NOISES = (0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
BUDGETS = (1.0, 2.0, 4.0, 8.0, 16.0)
IMAGES = (100, 300, 1_000, 3_000, 10_000)


@dataclass(frozen=True)
class Plan:
    """The numbers that a person chooses between.

    Attributes:
        heading: what the numbers are about.
        columns: names of the columns; the first is of the row's own value.
        rows: a noise multiplier or a number of images, then ε by column.
        needed: the noise multiplier by budget, for the run as it is set; empty if it has no single one.
    """

    heading: str
    columns: list[str]
    rows: list[list[float]]
    needed: dict[float, float]


def plan(config: Config, clients: int = 0) -> Plan:
    """ε by noise, and noise by budget.

    Args:
        config: rounds, participation, training and `privacy` of it count.
        clients: number of clients; 0: that of the partition.

    Returns:
        Of a run with `privacy.mode=example` a table over images per site, else one over rounds.
    """
    return _examples(config) if config.privacy.by_example else _clients(config, clients or _count(config))


def _count(config: Config) -> int:
    """Clients of the config, if it says how many."""
    sites = getattr(config.engine, "sites", ())
    found = len(sites) or getattr(config.partition, "clients", 0)
    if not found:
        raise ConfigError(f"partition.scheme={config.partition.scheme} does not say how many clients: --clients N")
    return int(found)


def _clients(config: Config, clients: int) -> Plan:
    per_round, delta = config.participation.size(clients), config.privacy.delta
    rate = per_round / clients
    rounds = sorted({max(1, config.rounds // 4), max(1, config.rounds // 2), config.rounds, 2 * config.rounds})
    rows = [[noise, *(epsilon(rate, noise, count, delta) for count in rounds)] for noise in _noises(config)]
    here = [(row[0], row[1 + rounds.index(config.rounds)]) for row in rows]
    return Plan(
        f"{clients:,} clients, {per_round:,} per round on average (each with probability {rate:.3g}), δ = {delta:g}",
        ["noise", *(f"{count:,} rounds" if count > 1 else "1 round" for count in rounds)],
        rows,
        {budget: _between(here, budget, rate, config.rounds, delta) for budget in _budgets(config)},
    )


def _examples(config: Config) -> Plan:
    """A site with n images takes n·E/B steps in a round, on a random share B/n of its images."""
    train, delta, rows = config.train, config.privacy.delta, []
    for images in IMAGES:
        rate = min(1.0, train.batch_size / images)
        steps = config.rounds * max(1, round(train.epochs / rate))
        rows.append([float(images), *(epsilon(rate, noise, steps, delta) for noise in _noises(config))])
    return Plan(
        f"every round of {config.rounds}: {train.epochs:g} epochs in batches of {train.batch_size}, δ = {delta:g}",
        ["images", *(f"noise {noise:g}" for noise in _noises(config))],
        rows,
        {},
    )


def _noises(config: Config) -> list[float]:
    own = {config.privacy.noise} - {0.0}
    return sorted({*NOISES, *own}) if not config.privacy.by_example else sorted({*NOISES[2:6], *own})


def _budgets(config: Config) -> list[float]:
    return sorted({*BUDGETS, config.privacy.epsilon} - {0.0})


def _between(
    known: Sequence[tuple[float, float]], budget: float, rate: float, count: int, delta: float
) -> float:
    """The noise of a budget; what is known already says where to look."""
    low = max((noise for noise, spent in known if spent > budget), default=0.0)
    high = min((noise for noise, spent in known if spent <= budget), default=0.0)
    return noise_for(budget, rate, count, delta, low, high or None)
