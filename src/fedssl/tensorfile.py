"""Tensors and plain values in one safetensors file.

The file has a checksum, so damaged files are reported and not used.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from fedssl.errors import RunError
from fedssl.state import State
from fedssl.storage import write_atomic


def save_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    values: Mapping[str, Any],
    durable: bool = True,
    checked: bool = True,
) -> None:
    """Write tensors and plain values into one safetensors file.

    Args:
        path: the file.
        tensors: tensors by name.
        values: plain values for JSON.
        durable: flush the file to disk.
        checked: add a checksum, which `load_tensors` verifies.
    """
    flat = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(values)
    if checked:  # in the same entry: safetensors writes several in any order, and equal files would differ
        text += f"\ncrc {_checksum(flat, text)}"
    write_atomic(path, lambda file: save_file(flat, file, {"values": text}), durable)


def load_tensors(path: Path, checked: bool = False) -> tuple[State, dict[str, Any]]:
    """Read a file written by `save_tensors`; the tensors are copies, not views of the file.

    Args:
        path: the file.
        checked: whether a file without a checksum is an error.

    Raises:
        RunError: the file is missing or damaged.
    """
    try:
        content = path.read_bytes()
        tensors: State = load(content)
        text, _, crc = _metadata(content).get("values", "{}").partition("\ncrc ")
        if (checked or crc) and crc != _checksum(tensors, text):
            raise ValueError("its checksum does not match" if crc else "it has no checksum")
        values: dict[str, Any] = json.loads(text)
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    return tensors, values


def _checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    """CRC-32 of tensors, their names, types and shapes, and a text."""
    crc = zlib.crc32(text.encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        crc = zlib.crc32(f"{name}\0{value.dtype}\0{tuple(value.shape)}".encode(), crc)
        if value.numel():
            crc = zlib.crc32(value.reshape(-1).view(torch.uint8).numpy().data, crc)
    return f"{crc:08x}"


def _metadata(content: bytes) -> dict[str, str]:
    """Read the metadata in the header of a safetensors file: its length in eight bytes, then JSON."""
    end = 8 + int.from_bytes(content[:8], "little")
    texts: dict[str, str] = json.loads(content[8:end]).get("__metadata__") or {}
    return texts
