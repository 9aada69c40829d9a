"""Random numbers from a key: noise, sampling and masks (AES-256 in counter mode).

A run's secret is a key from which the keys for every round and purpose are derived. With it, a resumed run
draws the same numbers again; without it, they cannot be repeated.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

KEY = 32  # bytes
PIECE = 1 << 20  # numbers drawn at a time: memory stays small
MANTISSA = 2.0**-53


def derive_key(secret: bytes, *purpose: int | str) -> bytes:
    """The key for one purpose."""
    text = "/".join(str(part) for part in purpose)
    return hashlib.blake2b(text.encode(), key=secret, digest_size=KEY).digest()


def run_secret(secret: bool, seed: int, file: Path) -> bytes:
    """Load or create the secret of a run's noise and sampling.

    Args:
        secret: whether it is random and stored in `file`; if not, it is derived from the seed.
        seed: the seed of the run.
        file: the file of a random secret; created if it is missing, readable by its owner only.

    Returns:
        32 bytes.
    """
    if not secret:
        return hashlib.blake2b(f"privacy/{seed}".encode(), digest_size=KEY).digest()
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(os.urandom(KEY))
            opened.flush()
            os.fsync(opened.fileno())
    return file.read_bytes()


class Stream:
    """An endless stream of random bytes. A key must not be used for two streams.

    Args:
        key: 32 bytes.
    """

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        self._encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def bytes(self, count: int) -> bytes:
        """The next bytes."""
        return self._encryptor.update(bytes(count))

    def words(self, count: int, bits: int) -> NDArray[np.unsignedinteger]:
        """The next numbers of 32 or 64 bits, all equally likely."""
        return np.frombuffer(self.bytes(count * bits // 8), dtype=f"<u{bits // 8}")

    def uniform(self, count: int) -> NDArray[np.float64]:
        """The next numbers in (0, 1], on a grid of 2^−53."""
        drawn = (self.words(count, 64) >> np.uint64(11)) + np.uint64(1)
        return drawn.astype(np.float64) * MANTISSA

    def normal(self, count: int) -> NDArray[np.float64]:
        """The next numbers of a standard normal distribution (Box and Muller 1958)."""
        drawn = np.empty(count)
        for start in range(0, count, PIECE):
            part = drawn[start : start + PIECE]
            half = -(-len(part) // 2)
            radius = np.sqrt(-2 * np.log(self.uniform(half)))
            angle = 2 * np.pi * self.uniform(half)
            part[:half] = radius * np.cos(angle)
            part[half:] = (radius * np.sin(angle))[: len(part) - half]
        return drawn
