"""Forged uploads against numbers that can be checked on paper."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch

from fedssl.attacks import ATTACKS
from fedssl.attacks.attack import Attack, Knowledge, Poison, order
from fedssl.attacks.backdoor import stamped
from fedssl.attacks.hidden import largest_step
from fedssl.engines.check import problem_with
from fedssl.options import choose
from fedssl.state import State, Upload

SENT: State = {
    "w": torch.tensor([1.0, 1.0]),
    "var": torch.tensor([1.0]),
    "n": torch.tensor(7),
}
NOBODY = cast(Any, None)


def upload(client: int, *update: float, var: float = 1.0) -> Upload:
    state = {"w": SENT["w"] + torch.tensor(update), "var": torch.tensor([var]), "n": torch.tensor(9)}
    return Upload(client, state, 10)


def knowledge(*honest: Upload, attackers: int = 1, reach: float = 100.0) -> Knowledge:
    return Knowledge(
        sent=SENT,
        honest=honest,
        statistics=frozenset({"var", "n"}),
        clients=len(honest) + attackers,
        attackers=attackers,
        reach=reach,
        weight=50,
        leader=NOBODY,
    )


def forge(name: str, own: Upload, known: Knowledge, **options: float) -> Upload:
    attack: Attack = choose(ATTACKS, {"name": name, **options}, "attack")
    return attack.forge(own, known, NOBODY)


def update(sent: Upload) -> list[float]:
    return (sent.state["w"] - SENT["w"]).tolist()


HONEST = (upload(0, 1.0, 0.0), upload(1, 3.0, 0.0), upload(2, 2.0, 3.0))  # mean 2, 1


def test_sign_flip_reverses_the_attackers_own_update() -> None:
    known = knowledge(*HONEST)
    assert update(forge("sign-flip", upload(3, 2.0, -1.0), known)) == [-2.0, 1.0]
    assert update(forge("sign-flip", upload(3, 2.0, -1.0), known, factor=3.0)) == [-6.0, 3.0]


@pytest.mark.parametrize("attackers", [1, 2, 3])
def test_minus_mean_makes_the_plain_mean_of_all_updates_zero(attackers: int) -> None:
    known = knowledge(*HONEST, attackers=attackers)
    hostile = [forge("minus-mean", upload(3 + i, 9.0, 9.0), known) for i in range(attackers)]
    everything = torch.stack([each.state["w"] - SENT["w"] for each in (*HONEST, *hostile)])
    assert everything.mean(dim=0).tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


def test_scaling_reaches_the_limits() -> None:
    forged = forge("scale", upload(3, 0.0, 0.0), knowledge(*HONEST, reach=10.0))
    assert update(forged) == pytest.approx([-10 * 2 / math.sqrt(5), -10 / math.sqrt(5)])
    assert forged.num_samples == 50


def test_a_little_is_enough_by_hand() -> None:
    """Deviations of (1, 3, 2) and (0, 0, 3): √(2/3) and √2."""
    forged = forge("alie", upload(3, 9.0, 9.0), knowledge(*HONEST), z=2.0)
    assert update(forged) == pytest.approx([2 - 2 * math.sqrt(2 / 3), 1 - 2 * math.sqrt(2)])


def test_min_max_is_no_further_from_honest_updates_than_they_are_from_each_other() -> None:
    known = knowledge(*HONEST)
    forged = torch.tensor(update(forge("min-max", upload(3, 9.0, 9.0), known)))
    honest = torch.tensor([update(each) for each in HONEST])
    widest = torch.cdist(honest, honest).max().item()
    assert (honest - forged).norm(dim=1).max().item() == pytest.approx(widest, rel=1e-5)
    assert update(forge("min-max", upload(3, 9.0, 9.0), knowledge(HONEST[0], HONEST[0]))) == [1.0, 0.0]


def test_the_largest_step_by_hand() -> None:
    """Updates −1 and 1, direction 1: at γ = 1 the distance from −1 is 2, the distance of the two."""
    updates = {"w": torch.tensor([[-1.0], [1.0]])}
    assert largest_step(updates, {"w": torch.zeros(1)}, {"w": torch.ones(1)}) == pytest.approx(1.0)


def test_poisoned_statistics_pass_the_check_under_central_parameters() -> None:
    forged = forge("statistics", upload(3, 9.0, 9.0, var=0.5), knowledge(*HONEST, reach=10.0))
    assert update(forged) == pytest.approx([2.0, 1.0])
    assert forged.state["var"].item() == pytest.approx(0.5 + math.sqrt(100 - 5))
    assert forged.state["n"].item() == 9
    assert problem_with(forged, SENT, variances={"var"}) == ""


def test_attackers_of_a_larger_share_include_those_of_a_smaller_one() -> None:
    few, many = (Poison(name="x", share=share).attackers(5, 10) for share in (0.2, 0.3))
    assert (len(few), len(many)) == (2, 3)
    assert few < many
    assert order(5, 10)[0] in few
    assert order(5, 10) != order(6, 10)


def test_the_trigger_is_a_checkerboard_in_the_corner() -> None:
    images = torch.full((2, 8, 8, 3), 7, dtype=torch.uint8)
    with_trigger = stamped(images)
    assert with_trigger[0, 6:, 6:, 0].tolist() == [[0, 255], [255, 0]]
    assert (with_trigger != images).sum().item() == 2 * 4 * 3
    assert int(images.min()) == 7
