"""Atomic files: written under a temporary name, then renamed.

Tensors carry a checksum, and so do the lines of metrics.jsonl: what changed on the disk is named, not used.
"""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli_w
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from fedssl.errors import RunError
from fedssl.state import State


def write_atomic(path: Path, write: Callable[[Path], None], durable: bool = True) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write(temporary)
        if durable:
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except Exception as error:
        temporary.unlink(missing_ok=True)
        if "No space left" in str(error) or getattr(error, "errno", None) == errno.ENOSPC:
            raise RunError(f"disk full: cannot write {path}; free some space and resume the run") from error
        raise


def write_text(path: Path, text: str) -> None:
    def write(file: Path) -> None:
        file.write_text(text, encoding="utf-8")

    write_atomic(path, write)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_toml(path: Path, value: Mapping[str, Any]) -> None:
    write_text(path, tomli_w.dumps(value))


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read."""

    def write(file: Path) -> None:
        with open(
            os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as opened:
            opened.write(text)

    write_atomic(path, write)


def private_folder(path: Path) -> Path:
    """Create a folder that only its owner can access, or make an existing one private."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)
    return path


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file."""
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    if not isinstance(loaded, dict):
        raise RunError(f"{path} cannot be read: it contains no JSON object")
    return loaded


# --- lines ----------------------------------------------------------------------------------------

HEX = re.compile("[0-9a-f]{8}")
SUMMED = re.compile(r"(\{.+), \"crc\": \"([0-9a-f]{8})\"\}")


def summed(values: Mapping[str, Any]) -> str:
    """A line of JSON that ends with a checksum of itself."""
    text = json.dumps(values)
    return f'{text[:-1]}, "crc": "{zlib.crc32(text.encode()):08x}"}}\n'


def parse_line(line: str) -> dict[str, Any]:
    """Parse a line written by `summed`; raises a ValueError if it is damaged."""
    match = SUMMED.fullmatch(line.rstrip("\n"))
    text = f"{match[1]}}}" if match else line
    if match and f"{zlib.crc32(text.encode()):08x}" != match[2]:
        raise ValueError("it does not have its checksum")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object")
    if not match and _resembles_checksum(*list(values.items())[-1:]):
        raise ValueError("its checksum is damaged")
    return values


def _resembles_checksum(*last: tuple[str, Any]) -> bool:
    """Whether the last entry of a line was a checksum before one of its characters changed."""
    return any(key == "crc" or (len(key) == 3 and HEX.fullmatch(str(value))) for key, value in last)


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The objects of a .jsonl file (none if it does not exist); a truncated last line is ignored.

    Raises:
        RunError: another line is damaged; names it.
    """
    for number, line in numbered_lines(file):
        try:
            yield parse_line(line)
        except ValueError as error:
            raise RunError(f"{file}, line {number} is damaged: {error}") from None


def numbered_lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file, numbered from 1; a truncated last line is omitted."""
    if not file.exists():
        return
    with open(file, encoding="utf-8", errors="replace", newline="\n") as opened:
        for number, line in enumerate(opened, 1):
            if line.endswith("\n") or _whole(line):
                yield number, line


def _whole(line: str) -> bool:
    try:
        parse_line(line)
    except ValueError:
        return False
    return True


def append_line(file: Path, line: str) -> None:
    """Append a line; a truncated last line is removed."""
    with open(file, "a+b") as opened:
        size = opened.seek(0, os.SEEK_END)
        opened.seek(max(0, size - 1))
        if opened.read(1) not in (b"", b"\n"):
            opened.seek(0)
            content = opened.read()
            start = content.rfind(b"\n") + 1
            if _whole(content[start:].decode(errors="replace")):
                line = "\n" + line
            else:
                opened.truncate(start)
        opened.write(line.encode())


# --- tensors --------------------------------------------------------------------------------------


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
        values: what JSON can store.
        durable: wait until it is on the disk.
        checked: with a checksum, which `load_tensors` verifies.
    """
    flat = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(values)
    if checked:  # in the same entry: safetensors writes several in any order, and equal files would differ
        text += f"\ncrc {_checksum(flat, text)}"
    write_atomic(path, lambda file: save_file(flat, file, {"values": text}), durable)


def load_tensors(path: Path, checked: bool = False) -> tuple[State, dict[str, Any]]:
    """Read what `save_tensors` wrote; the tensors are copies, not views of the file.

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
            raise ValueError("it does not have its checksum" if crc else "it has no checksum")
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
    """The texts in the header of a safetensors file: eight bytes say how long it is, then it is JSON."""
    end = 8 + int.from_bytes(content[:8], "little")
    texts: dict[str, str] = json.loads(content[8:end]).get("__metadata__") or {}
    return texts
