"""Sums over flattened tensors in chunks, so that each chunk is read from memory once.

They do not depend on the memory layout of tensors, which may change when a run is resumed. Like all sums in
torch, their last bits depend on the number of threads.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Elements whose products are summed in their own precision; these sums are added up in double. Longer
# pieces would lose digits (a cosine is right to 1e-7 with this, to 7e-6 with 2²²), and be slower.
PIECE = 1 << 17

# In single precision, sums of squares outside of this range lose digits, or overflow.
SAFE = (1e-20, 1e30)


def flat(tensor: Tensor) -> Tensor:
    """Flatten a tensor in logical order, in at least single precision; a view if possible."""
    return tensor.detach().reshape(-1).to(torch.promote_types(tensor.dtype, torch.float32))


def pieces(vector: Tensor) -> list[slice]:
    return [slice(start, start + PIECE) for start in range(0, len(vector), PIECE)]


def safe(square: float) -> bool:
    """Whether a sum of squares in single precision is accurate."""
    return SAFE[0] < square < SAFE[1]


def square(a: Tensor) -> float:
    """‖a‖² of a flat vector."""
    total = sum(float(torch.dot(a[piece], a[piece])) for piece in pieces(a))
    return total if a.dtype == torch.float64 or safe(total) else square(a.double())


def square_distance(a: Tensor, b: Tensor) -> float:
    """‖b − a‖² of flat vectors; zero only if they are equal."""
    total = 0.0
    for piece in pieces(a):
        difference = b[piece] - a[piece]
        total += float(torch.dot(difference, difference))
    if a.dtype == torch.float64 or safe(total):
        return total
    return square_distance(a.double(), b.double())
