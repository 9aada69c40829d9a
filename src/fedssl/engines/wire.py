"""Messages of tensors between server and clients: safetensors, with floats of type `wire.dtype`.

The loop rounds what it sends and receives on every engine, so a run with 16-bit messages gives
the same bits on engines that do not send anything.
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
HEADER = 1 << 12  # bytes of a message beyond its tensors, at most, and for each tensor:
HEADER_EACH = 512


class WireError(Exception):
    """A message that is too long or does not contain tensors."""


def pack(state: Mapping[str, Tensor], dtype: str) -> bytes:
    """Serialize tensors."""
    data: bytes = save({name: _narrow(value, dtype).contiguous() for name, value in state.items()})
    return data


def unpack(data: bytes, most: int) -> State:
    """Deserialize what `pack` returned; messages of more than `most` bytes are refused unread."""
    if len(data) > most:
        raise WireError(f"{len(data):,} bytes: at most {most:,} are accepted")
    try:
        return {name: _widen(value) for name, value in load(data).items()}
    except (SafetensorError, ValueError, KeyError) as error:
        raise WireError(f"{len(data):,} bytes that are not tensors: {error}") from None


def round_to_dtype(state: State, dtype: str) -> State:
    """Round a state as sending it does."""
    if dtype == "float32":
        return state
    sent = {name: _widen(_narrow(value, dtype)) for name, value in state.items()}
    for name, value in sent.items():
        if value.is_floating_point() and not value.isfinite().all() and state[name].isfinite().all():
            largest = float(state[name].abs().max())
            raise RunError(f"{name} has values up to {largest:.3g}, too large for wire.dtype={dtype}")
    return sent


def num_bytes(state: Mapping[str, Tensor], dtype: str) -> int:
    """The number of bytes that sending the tensors takes."""
    return sum(_sent_size(value, dtype) * value.numel() for value in state.values())


def max_message_bytes(state: Mapping[str, Tensor], dtype: str) -> int:
    """The largest number of bytes of a message with such tensors."""
    return num_bytes(state, dtype) + HEADER + HEADER_EACH * len(state)


def _sent_size(value: Tensor, dtype: str) -> int:
    return 2 if dtype == "float16" and value.dtype == torch.float32 else value.element_size()


def _narrow(value: Tensor, dtype: str) -> Tensor:
    return value.half() if dtype == "float16" and value.dtype == torch.float32 else value


def _widen(value: Tensor) -> Tensor:
    return value.float() if value.dtype == torch.float16 else value
