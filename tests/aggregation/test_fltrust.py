"""FLTrust against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import cast

import pytest
import torch

from fedssl.aggregation import build
from fedssl.aggregation.fltrust import FLTrust
from fedssl.errors import RunError
from fedssl.state import State, Upload

PREVIOUS: State = {"w": torch.tensor([1.0, 1.0]), "var": torch.tensor([4.0]), "n": torch.tensor(3)}
VAR = frozenset({"var"})


def state(x: float, y: float, var: float = 5.0, n: int = 5) -> State:
    return {"w": torch.tensor([1.0 + x, 1.0 + y]), "var": torch.tensor([var]), "n": torch.tensor(n)}


def aggregate(root: State, *uploads: State) -> State:
    rule = cast(FLTrust, build("fltrust")).anchored(root)
    return rule(PREVIOUS, [Upload(i, each, 10**i) for i, each in enumerate(uploads)], VAR)


def test_updates_have_the_servers_length_and_count_by_their_cosine() -> None:
    """The server's is (2, 0). (5, 0) and (3, 3) have cosines 1 and 1/√2, and become (2, 0) and (√2, √2)."""
    new = aggregate(state(2.0, 0.0), state(5.0, 0.0), state(3.0, 3.0))
    half = 1 / math.sqrt(2)
    x, y = (2 + half * math.sqrt(2)) / (1 + half), half * math.sqrt(2) / (1 + half)
    assert new["w"].tolist() == pytest.approx([1 + x, 1 + y])
    assert new["n"].item() == 5


def test_updates_in_the_opposite_direction_have_no_weight() -> None:
    alone = aggregate(state(1.0, 1.0), state(2.0, 1.0))
    with_hostile = aggregate(state(1.0, 1.0), state(2.0, 1.0), state(-1e6, -1e6), state(1.0, -1.0))
    assert torch.equal(alone["w"], with_hostile["w"])


def test_statistics_are_compared_too_and_only_shortened() -> None:
    """The server's variance rises by 1. One that rises by 100 counts as a rise by 1, one by 0.5 as it is."""
    new = aggregate(state(1.0, 0.0), state(1.0, 0.0, var=104.0), state(1.0, 0.0, var=4.5))
    assert new["var"].item() == pytest.approx(4 + (1 + 0.5) / 2)
    against = aggregate(state(1.0, 0.0), state(1.0, 0.0, var=3.0), state(0.0, 1.0, var=5.0))
    assert against["w"].tolist() == [1.0, 1.0]  # the first has cosine −1 among statistics, the second 0
    assert against["var"].item() == 4.0


def test_the_rule_needs_the_servers_update() -> None:
    with pytest.raises(RunError, match="needs the server's own update"):
        build("fltrust")(PREVIOUS, [Upload(0, state(1.0, 0.0), 1)], VAR)
