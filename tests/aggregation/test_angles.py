from __future__ import annotations

import math

import pytest
import torch

from fedssl.aggregation.angles import Reference, angles
from fedssl.threads import with_threads
from fedssl.vectors import PIECE


@pytest.mark.parametrize("size", [0, 1, 7, 5000, PIECE, PIECE + 1, 2 * PIECE + 5])
def test_every_size_has_the_cosine_of_double_precision(size: int) -> None:
    rng = torch.Generator().manual_seed(size)
    a, b = torch.randn(size, generator=rng), torch.randn(size, generator=rng)
    b += a
    expected = float(torch.cosine_similarity(a.double(), b.double(), dim=0)) if size else 1.0
    with with_threads(2):  # sums in single precision lose digits with the length of a thread's share
        assert angles({"w": a}, {"w": b})["w"] == pytest.approx(expected, abs=3e-7)


@pytest.mark.parametrize("size", [3, PIECE + 1])
@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1.0, 1e18, 1e30])
def test_angles_do_not_depend_on_scale(size: int, scale: float) -> None:
    """Squares of these leave the range of single precision."""
    rng = torch.Generator().manual_seed(0)
    a, b = torch.randn(size, generator=rng), torch.randn(size, generator=rng)
    expected = angles({"w": a}, {"w": b})["w"]
    assert abs(expected) < 0.99
    assert angles({"w": a * scale}, {"w": b})["w"] == pytest.approx(expected, abs=3e-7)
    assert angles({"w": a}, {"w": b * scale})["w"] == pytest.approx(expected, abs=3e-7)


def test_special_angles() -> None:
    right, up, zero = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 3.0]), torch.zeros(2)
    previous = {"same": right, "orthogonal": right, "opposite": right, "from zero": zero, "to zero": right}
    state = {"same": right * 5, "orthogonal": up, "opposite": -right, "from zero": up, "to zero": zero}
    assert angles(previous, state) == {
        "same": 1.0,
        "orthogonal": 0.0,
        "opposite": -1.0,
        "from zero": 1.0,
        "to zero": 1.0,
    }


def test_the_angle_of_a_model_is_that_of_its_layers_as_one_vector() -> None:
    """A layer of zeros adds nothing to it; statistics and counters are no layers."""
    previous = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0]), "zero": torch.zeros(9)}
    state = {"a": torch.tensor([4.0]), "b": torch.tensor([3.0]), "zero": torch.zeros(9)}
    extra = {"mean": torch.tensor([100.0]), "count": torch.tensor(3)}
    compared = Reference(previous | extra, frozenset({"mean"})).compare(state | extra)
    assert compared.angle == pytest.approx(0.96)
    assert list(compared.angles) == ["a", "b", "zero"]
    assert Reference({}).compare({}).angle == 1.0


@pytest.mark.parametrize("gap", [0.0, 1e-30, 0.5])
def test_distance_is_zero_only_between_equals(gap: float) -> None:
    previous = {"w": torch.zeros(PIECE + 3)}
    state = {"w": torch.full((PIECE + 3,), gap)}
    assert Reference(previous).compare(state).distance("w") == pytest.approx(
        gap * math.sqrt(PIECE + 3), rel=1e-6
    )


def test_named_layers_only() -> None:
    state = {"a": torch.ones(2), "b": torch.ones(2)}
    assert angles(state, state, ["b"]) == {"b": pytest.approx(1.0)}
