"""Canary clients: random updates of the right length, from half of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fedssl
from fedssl.privacy.canary import Canaries, canary_layout, cosines
from fedssl.state import State
from tests.small import digest, small_run

STATISTICS = frozenset({"norm.running_var"})


def state(value: float) -> State:
    return {
        "conv": torch.full((30,), value),
        "norm.running_var": torch.ones(4),
        "norm.num_batches_tracked": torch.tensor(3),
    }


def test_a_coin_decides_who_takes_part() -> None:
    canaries = Canaries(0, 5, 1000)
    assert 430 < canaries.taking_part.sum() < 570
    kept = canaries.without_absent(range(canaries.total))
    assert kept[:5] == [0, 1, 2, 3, 4]  # clients with images
    assert len(kept) == 5 + canaries.taking_part.sum()
    assert (Canaries(1, 5, 1000).taking_part != canaries.taking_part).any()


def test_directions_are_of_length_one_and_unlike_each_other() -> None:
    canaries = Canaries(0, 5, 3)
    first, second = canaries.direction(0, 5000), canaries.direction(1, 5000)
    assert np.linalg.norm(first) == pytest.approx(1)
    assert abs(first @ second) < 0.08
    assert (first == canaries.direction(0, 5000)).all()  # in every round


@pytest.mark.parametrize(("clip", "expected"), [(0.5, 0.5), (None, 2 * 30**0.5)])
def test_an_update_has_the_clipping_norm_or_another_updates_norm(clip: float | None, expected: float) -> None:
    canaries, received = Canaries(0, 5, 3), state(1.0)
    sent = canaries.upload(6, received, state(3.0), STATISTICS, clip)
    layout = canary_layout(received, STATISTICS)
    change = layout.flatten(sent) - layout.flatten(received)
    assert np.linalg.norm(change) == pytest.approx(expected, rel=1e-5)
    assert change / expected == pytest.approx(canaries.direction(1, 30), abs=1e-5)
    assert cosines(canaries, change)[1] == pytest.approx(1, abs=1e-5)
    for name in ("norm.running_var", "norm.num_batches_tracked"):
        assert torch.equal(sent[name], received[name])
    assert {name: value.dtype for name, value in sent.items()} == {
        name: value.dtype for name, value in received.items()
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedssl.Run:
    return small_run(tmp_path_factory.mktemp("canary") / "run", **{"privacy.canaries": 8, "rounds": 2})


def test_participating_canaries_are_in_every_round(run: fedssl.Run) -> None:
    canaries = Canaries(0, 5, 8)
    expected = canaries.without_absent(range(13))
    for line in run.metrics:
        assert [client["client"] for client in line["clients"]] == expected
        assert not line["failed"]


@pytest.mark.usefixtures("warm_workers")
def test_workers_give_the_same_bits(run: fedssl.Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    again = small_run(
        tmp_path_factory.mktemp("canary") / "run",
        **{"privacy.canaries": 8, "rounds": 2, "engine.workers": 2},
    )
    assert digest(again) == digest(run)
