"""The values that are summed: integers modulo 2^bits for tensors, and 64-bit integers for numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedssl.privacy.grid import Words
from fedssl.privacy.stream import Stream


@dataclass
class Parcel:
    """The contribution of a client, masked or not, or a sum of contributions.

    Attributes:
        tensors: the tensors, as one vector.
        numbers: numbers next to them: masses, losses.
    """

    tensors: Words
    numbers: Words

    @classmethod
    def zeros(cls, tensors: int, numbers: int, bits: int) -> Parcel:
        return cls(np.zeros(tensors, dtype=f"<u{bits // 8}"), np.zeros(numbers, dtype="<u8"))

    def add(self, other: Parcel) -> None:
        """Add another parcel, modulo 2^bits."""
        self.tensors += other.tensors
        self.numbers += other.numbers

    def mask(self, stream: Stream, sign: int) -> None:
        """Add (sign 1) or subtract (sign −1) the numbers of a stream."""
        numbers = stream.words(len(self.numbers), 64)
        tensors = stream.words(len(self.tensors), 8 * self.tensors.itemsize)
        operation = np.add if sign > 0 else np.subtract
        operation(self.numbers, numbers, out=self.numbers)
        operation(self.tensors, tensors, out=self.tensors)

    def to_bytes(self) -> bytes:
        return self.numbers.tobytes() + self.tensors.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, tensors: int, numbers: int, bits: int) -> Parcel:
        """The inverse of `to_bytes`; a ValueError if the length is not the right one."""
        if len(data) != 8 * numbers + tensors * bits // 8:
            raise ValueError(f"{len(data):,} bytes are not {numbers} numbers and {tensors:,} tensor values")
        split = 8 * numbers
        return cls(
            np.frombuffer(data[split:], dtype=f"<u{bits // 8}").copy(),
            np.frombuffer(data[:split], dtype="<u8").copy(),
        )
