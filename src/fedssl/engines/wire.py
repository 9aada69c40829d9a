"""What tensors are like between server and client: safetensors, floating point numbers at `wire.dtype`.

The loop rounds what it sends and what it gets, whatever the engine: a run with 16 bits on the wire gives
the same bits where nothing is sent at all.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedssl.errors import RunError
from fedssl.state import State

MEGABYTE = 1 << 20
HEADER = 1 << 12  # bytes that a message may be longer than its tensors, and for each of them:
HEADER_EACH = 512


class WireError(Exception):
    """Bytes that are no tensors, or too many of them; its text says which."""


def pack(state: Mapping[str, Tensor], dtype: str) -> bytes:
    """The bytes of a message."""
    data: bytes = save({name: _narrow(value, dtype).contiguous() for name, value in state.items()})
    return data


def unpack(data: bytes, most: int) -> State:
    """What `pack` was given, rounded; longer data than `most` bytes are not looked at."""
    if len(data) > most:
        raise WireError(f"{len(data):,} bytes: at most {most:,} are accepted")
    try:
        return {name: _widen(value) for name, value in load(data).items()}
    except (SafetensorError, ValueError, KeyError) as error:
        raise WireError(f"{len(data):,} bytes that are no tensors: {error}") from None


def round_to_dtype(state: State, dtype: str) -> State:
    """The state as it is after it was sent."""
    if dtype == "float32":
        return state
    sent = {name: _widen(_narrow(value, dtype)) for name, value in state.items()}
    for name, value in sent.items():
        if value.is_floating_point() and not value.isfinite().all() and state[name].isfinite().all():
            largest = float(state[name].abs().max())
            raise RunError(f"{name} has values up to {largest:.3g}, too large for wire.dtype={dtype}")
    return sent


def num_bytes(state: Mapping[str, Tensor], dtype: str) -> int:
    """How much of the network the tensors take."""
    return sum(_sent_size(value, dtype) * value.numel() for value in state.values())


def max_message_bytes(state: Mapping[str, Tensor], dtype: str) -> int:
    """Bytes that a message with such tensors has at most."""
    return num_bytes(state, dtype) + HEADER + HEADER_EACH * len(state)


def _sent_size(value: Tensor, dtype: str) -> int:
    return 2 if dtype == "float16" and value.dtype == torch.float32 else value.element_size()


def _narrow(value: Tensor, dtype: str) -> Tensor:
    return value.half() if dtype == "float16" and value.dtype == torch.float32 else value


def _widen(value: Tensor) -> Tensor:
    return value.float() if value.dtype == torch.float16 else value
