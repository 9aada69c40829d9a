"""Random numbers that only depend on their purpose.

Every draw derives from (seed, round, client, purpose), not from what ran before it, in which
process, or in which order. Results therefore do not depend on the engine.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def derive(seed: int, *purpose: int | str) -> int:
    """A 63-bit seed for one purpose."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def torch_rng(seed: int, *purpose: int | str) -> torch.Generator:
    """A CPU generator for one purpose, also used with GPUs, for the same draws everywhere."""
    return torch.Generator().manual_seed(derive(seed, *purpose))


def numpy_rng(seed: int, *purpose: int | str) -> np.random.Generator:
    """A NumPy generator for one purpose."""
    return np.random.default_rng(derive(seed, *purpose))
