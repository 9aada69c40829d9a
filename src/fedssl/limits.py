"""Limits on what is read and built, checked before memory is taken."""

from __future__ import annotations

import os
import stat
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

MOST_VALUES = 1 << 30  # of one decoded image: 32768 × 32768


def physical_memory() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_regular(file: Path) -> None:
    """Raise a ValueError unless it is a regular file: reading a pipe or a device may never end."""
    if not stat.S_ISREG(os.stat(file).st_mode):
        raise ValueError("not a regular file")


def check_values(shape: tuple[int, ...]) -> None:
    """Raise a ValueError for an image with too many values."""
    if min(shape, default=1) < 1:
        raise ValueError(f"shape {shape}: no pixels")
    if prod(shape) > MOST_VALUES:
        raise ValueError(f"shape {shape}: too large for an image")


def npy_shape(file: BinaryIO, size: int) -> tuple[int, ...]:
    """Read the shape in the header of a NumPy array, and check that its data can be there.

    Args:
        file: the array, at its beginning.
        size: bytes from there on.

    Raises:
        ValueError: it is not an array of plain values, or its header claims more data than there are.
    """
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    version = npy.read_magic(file)
    if version not in read:
        raise ValueError(f"a NumPy array of version {version[0]}.{version[1]}, which is not supported")
    shape, _, dtype = read[version](file)
    if dtype.hasobject:
        raise ValueError("contains Python objects (a pickle), which are never loaded")
    claimed = prod(shape) * dtype.itemsize
    if claimed > size:
        raise ValueError(f"its header claims {claimed:,} bytes, but it has {size:,}")
    return tuple(int(side) for side in shape)


def load_npy(file: Path) -> NDArray[Any]:
    """Load a NumPy array after checking its header."""
    with open(file, "rb") as opened:
        check_values(npy_shape(opened, os.fstat(opened.fileno()).st_size))
    values: NDArray[Any] = np.load(file, allow_pickle=False)
    return values
