"""Converts numbers to integers, whose sums are exact in any order and can be masked.

A number is rounded to the nearest multiple of a step. Integers wrap around at 2^bits, so a sum is correct if
its result fits; the step is chosen so that it does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.unsignedinteger]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Grid:
    """A fixed-point representation of bounded numbers.

    Attributes:
        step: distance of two neighboring numbers, a power of two.
        bound: largest absolute value that may be encoded.
        bits: bits of an integer, 32 or 64.
    """

    step: float
    bound: float
    bits: int

    @classmethod
    def fit(cls, bound: float, count: int, bits: int, room: float = 0.0) -> Grid:
        """The finest grid for sums of `count` numbers of at most `bound`, with `room` for noise."""
        return cls(2.0 ** (math.ceil(math.log2(bound * count + room)) + 1 - bits), bound, bits)

    @property
    def error(self) -> float:
        """The largest difference between a number and what it is rounded to."""
        return self.step / 2

    def integers(self, values: Floats) -> NDArray[np.int64]:
        """Numbers in units of the step, rounded.

        Raises:
            ValueError: if a number is beyond the bound, or is not finite.
        """
        largest = float(np.abs(values).max(initial=0.0))
        if not largest <= self.bound:  # also NaN
            raise ValueError(f"a number of {largest:.3g}, but the bound is {self.bound:g}")
        return np.rint(values / self.step).astype(np.int64)

    def wrap(self, integers: NDArray[np.int64]) -> Words:
        """Integers modulo 2^bits."""
        return integers.astype(self.dtype)  # two's complement: the lowest bits

    def encode(self, values: Floats) -> Words:
        """Numbers as integers modulo 2^bits."""
        return self.wrap(self.integers(values))

    def decode(self, words: Words) -> Floats:
        """Convert integers modulo 2^bits to numbers."""
        return words.view(f"<i{self.bits // 8}").astype(np.float64) * self.step

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        return np.dtype(f"<u{self.bits // 8}")

    def zeros(self, count: int) -> Words:
        return np.zeros(count, dtype=self.dtype)
