"""The planning table agrees with the accountant."""

from __future__ import annotations

import pytest

from fedssl import cli
from fedssl.config import load
from fedssl.errors import ConfigError
from fedssl.privacy import plan as planning
from fedssl.privacy.accountant import epsilon
from fedssl.privacy.plan import plan
from tests.small import SMALL


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "NOISES", (1.0, 4.0))
    monkeypatch.setattr(planning, "BUDGETS", (2.0,))


def test_a_planning_table() -> None:
    keys = {"partition.clients": 50, "participation.per_round": 5, "rounds": 20}
    found = plan(load(SMALL, keys))
    assert found.columns == ["noise", "10 rounds", "20 rounds", "40 rounds"]
    assert found.rows[0] == [1.0, *(epsilon(0.1, 1.0, rounds, 1e-5) for rounds in (10, 20, 40))]
    (noise,) = found.needed.values()
    assert epsilon(0.1, noise, 20, 1e-5) <= 2.0 < epsilon(0.1, 0.99 * noise, 20, 1e-5)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["partition.clients=50", "participation.per_round=0.1", "rounds=20", "privacy.delta=1e-4"]
    assert cli.main(["privacy", *words, "privacy.mode=client", "privacy.noise=1.0"]) == 0
    shown = capsys.readouterr().out
    assert "50 clients, 5 per round (each with probability 0.1), δ = 0.0001" in shown
    assert f"{epsilon(0.1, 1.0, 20, 1e-4):.3g}" in shown


def test_the_number_of_clients_must_be_known() -> None:
    config = load(SMALL, {"partition": {"scheme": "domain"}})
    with pytest.raises(ConfigError, match="does not give a number of clients: add --clients N"):
        plan(config)
    assert plan(config, clients=50).shared == 50


EXAMPLE = {"privacy.mode": "example", "privacy.noise": 1.0, "train.batch_size": 20, "rounds": 10}


def test_a_table_for_single_images() -> None:
    found = plan(load(SMALL, {**EXAMPLE, "train.epochs": 2.0}), images=200)
    assert found.heading == (
        "200 images at a client, 20 per step (each with probability 0.1), 20 steps per round, δ = 1e-05"
    )
    assert found.columns == ["noise", "5 rounds", "10 rounds", "20 rounds"]
    assert found.rows[0] == [1.0, *(epsilon(0.1, 1.0, 20 * rounds, 1e-5) for rounds in (5, 10, 20))]
    (noise,) = found.needed.values()
    assert epsilon(0.1, noise, 200, 1e-5) <= 2.0 < epsilon(0.1, 0.99 * noise, 200, 1e-5)


def test_the_number_of_images_must_be_known() -> None:
    with pytest.raises(ConfigError, match=r"privacy\.mode=example: --images N, the number of images of"):
        plan(load(SMALL, EXAMPLE))
