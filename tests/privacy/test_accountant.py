"""ε compared with dp-accounting used directly, and with published values."""

from __future__ import annotations

import math

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from fedssl.privacy import accountant
from fedssl.privacy.accountant import Ledger, Release, epsilon, noise_for, releases_for

# (clients per round, clients, rounds, noise multiplier, δ)
SETTINGS = [
    (10, 100, 100, 1.0, 1e-5),
    (10, 100, 20, 1.5, 1e-5),
    (10, 100, 100, 3.0, 1e-6),
    (50, 1_000, 100, 1.0, 1e-5),
    (50, 1_000, 200, 2.0, 1e-6),
    (100, 10_000, 100, 1.0, 1e-5),
    (100, 10_000, 500, 0.8, 1e-6),
    (5, 5, 10, 4.0, 1e-3),
    (5, 5, 1, 1.0, 1e-3),
    (20, 40, 30, 2.5, 1e-4),
    (1, 1_000, 50, 0.7, 1e-5),
    (500, 1_000, 10, 5.0, 1e-5),
    (30, 300, 50, 10.0, 1e-5),
]


@pytest.mark.parametrize(("per_round", "clients", "rounds", "noise", "delta"), SETTINGS)
def test_epsilon_is_that_of_dp_accounting(
    per_round: int, clients: int, rounds: int, noise: float, delta: float
) -> None:
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(per_round / clients, dp_accounting.GaussianDpEvent(noise)), rounds
    )
    exact = PLDAccountant(value_discretization_interval=4e-4).compose(event).get_epsilon(delta)
    ours = epsilon(per_round / clients, noise, rounds, delta)
    assert ours == pytest.approx(exact, rel=0.002, abs=0.002)
    # Rényi accounting is an upper bound by another road.
    assert RdpAccountant().compose(event).get_epsilon(delta) > 0.999 * ours


@pytest.mark.parametrize(
    ("per_round", "clients", "published"), [(10, 100, 7.1), (50, 1_000, 3.5), (100, 10_000, 0.72)]
)
def test_published_values(per_round: int, clients: int, published: float) -> None:
    found = epsilon(per_round / clients, 1.0, 100, 1e-5)
    assert found == pytest.approx(published, rel=0.01)


def test_little_noise_takes_no_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grid of its privacy losses would have billions of points."""
    event = dp_accounting.PoissonSampledDpEvent(0.6, dp_accounting.GaussianDpEvent(0.02))
    bound = RdpAccountant([2, 3]).compose(event, 40).get_epsilon(1e-5)
    monkeypatch.setattr(accountant, "_loss", lambda *_: pytest.fail("a grid"))
    assert epsilon(0.6, 0.02, 40, 1e-5) == pytest.approx(bound)
    assert bound > 10_000


def test_epsilon_grows_with_rounds_also_where_the_bound_takes_over() -> None:
    found = [epsilon(0.5, 0.4, count, 1e-5) for count in range(1, 42, 5)]
    assert found == sorted(found)
    assert found[0] < accountant.LARGE < found[-1]


def test_without_sampling_it_is_the_gaussian_mechanism() -> None:
    """δ(ε) of one release has a closed form (Balle and Wang 2018, Theorem 8)."""

    def phi(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    noise, delta = 2.0, 1e-3
    found = epsilon(1.0, noise, 1, delta)
    a, b = 1 / (2 * noise), found * noise
    assert phi(a - b) - math.exp(found) * phi(-a - b) == pytest.approx(delta, rel=0.01)


def test_a_ledger_survives_a_checkpoint_and_adds_up() -> None:
    few, many = Release(0.1, 1.0), Release(0.05, 2.0)
    ledger = Ledger().after(few, 3).after(many).after(few)
    assert ledger.releases == {few: 4, many: 1}
    again = Ledger.read({**ledger.values(), "lambda/3": 0.5})
    assert again == ledger
    assert again.epsilon(1e-5) > Ledger({few: 4}).epsilon(1e-5) > 0
    assert Ledger().epsilon(1e-5) == 0
    assert Ledger({Release(0.1, 0.0): 1}).epsilon(1e-5) == math.inf


def test_the_noise_of_a_budget_is_just_enough() -> None:
    noise = noise_for(2.0, 0.05, 50, 1e-5)
    assert epsilon(0.05, noise, 50, 1e-5) <= 2.0 < epsilon(0.05, 0.995 * noise, 50, 1e-5)


def test_the_number_of_rounds_within_a_budget() -> None:
    rounds = releases_for(4.0, 0.1, 1.0, 1e-5)
    assert epsilon(0.1, 1.0, rounds, 1e-5) <= 4.0 < epsilon(0.1, 1.0, rounds + 1, 1e-5)
    assert releases_for(0.01, 0.1, 1.0, 1e-5) == 0
