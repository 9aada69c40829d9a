"""What a budget needs and what noise gives, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedssl.errors import ConfigError
from fedssl.privacy.accountant import epsilon, noise_for

if TYPE_CHECKING:
    from fedssl.config import Config

NOISES = (0.5, 0.7, 1.0, 1.5, 2.5, 5.0)
BUDGETS = (1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True)
class Plan:
    """The numbers that a person chooses between.

    Attributes:
        heading: what the numbers are about.
        columns: names of the columns; the first is of the row's own value.
        rows: a noise multiplier, then ε by column.
        needed: the noise multiplier by budget, for the rounds of the config.
        per_round: clients of a round, on average.
    """

    heading: str
    columns: list[str]
    rows: list[list[float]]
    needed: dict[float, float]
    per_round: int


def plan(config: Config, clients: int = 0) -> Plan:
    """ε by noise, and noise by budget.

    Args:
        config: `rounds`, `participation` and `privacy` of it count.
        clients: number of clients; 0: that of the partition.

    Returns:
        ε by noise multiplier and number of rounds, and the noise that budgets need.
    """
    clients = clients or _count(config)
    per_round, delta, last = config.participation.size(clients), config.privacy.delta, config.rounds
    rate = per_round / clients
    rounds = sorted({max(1, last // 2), last, 2 * last})
    rows = [[noise, *(epsilon(rate, noise, count, delta) for count in rounds)] for noise in _noises(config)]
    here = [(row[0], row[1 + rounds.index(last)]) for row in rows]
    return Plan(
        f"{clients:,} clients, {per_round:,} per round (each with probability {rate:.3g}), δ = {delta:g}",
        ["noise", *(f"{count:,} rounds" if count > 1 else "1 round" for count in rounds)],
        rows,
        {budget: _between(here, budget, rate, last, delta) for budget in _budgets(config)},
        per_round,
    )


def _count(config: Config) -> int:
    """Clients of the config, if it says how many."""
    sites = getattr(config.engine, "sites", ())
    found = len(sites) or getattr(config.partition, "clients", 0)
    if not found:
        raise ConfigError(f"partition.scheme={config.partition.scheme} names no number: --clients N")
    return int(found)


def _noises(config: Config) -> list[float]:
    own = {config.privacy.noise} - {0.0}
    return sorted({*NOISES, *own})


def _budgets(config: Config) -> list[float]:
    return sorted({*BUDGETS, config.privacy.epsilon} - {0.0})


def _between(
    known: Sequence[tuple[float, float]], budget: float, rate: float, count: int, delta: float
) -> float:
    """The noise of a budget; what is known already says where to look."""
    low = max((noise for noise, spent in known if spent > budget), default=0.0)
    high = min((noise for noise, spent in known if spent <= budget), default=0.0)
    return noise_for(budget, rate, count, delta, low, high or None)
