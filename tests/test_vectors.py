"""Sums over vectors, compared with double precision."""

import numpy as np
import pytest
import torch

from fedssl.state import distance
from fedssl.vectors import PIECE, flat, square, square_distance


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, 2 * PIECE + 3])
def test_as_numpy_in_double_precision(size: int) -> None:
    rng = np.random.default_rng(size)
    a, b = rng.normal(size=(2, size)).astype(np.float32)
    wide = b.astype(np.float64) - a
    assert square(torch.from_numpy(a)) == pytest.approx((a.astype(np.float64) ** 2).sum(), rel=1e-6)
    assert square_distance(torch.from_numpy(a), torch.from_numpy(b)) == pytest.approx(
        (wide**2).sum(), rel=1e-6
    )


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e25])
def test_numbers_whose_squares_leave_single_precision(scale: float) -> None:
    a = torch.tensor([3.0, 0.0]) * scale
    b = torch.tensor([0.0, 4.0]) * scale
    assert square_distance(a, b) ** 0.5 == pytest.approx(5 * scale, rel=1e-6)
    assert square(b) ** 0.5 == pytest.approx(4 * scale, rel=1e-6)


def test_near_vectors_are_not_equal_and_equal_ones_are_at_zero() -> None:
    a = torch.ones(10)
    b = a.clone()
    b[3] += 1e-6
    assert square_distance(a, a.clone()) == 0
    assert square_distance(a, b) ** 0.5 == pytest.approx(float(b[3]) - 1, rel=1e-6)


def test_the_layout_in_memory_does_not_matter() -> None:
    images = torch.randn(4, 3, 5, 5)
    other = images.contiguous(memory_format=torch.channels_last) + 1
    assert square_distance(flat(images), flat(other)) == pytest.approx(images.numel(), rel=1e-6)


def test_several_tensors_are_one_vector() -> None:
    a = {"x": torch.tensor([1.0]), "y": torch.tensor([2.0, 2.0], dtype=torch.bfloat16), "z": torch.ones(3)}
    b = {"x": torch.tensor([4.0]), "y": torch.tensor([2.0, 6.0], dtype=torch.bfloat16), "z": torch.zeros(3)}
    assert distance(a, b, ["x", "y"]) == 5
