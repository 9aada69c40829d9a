"""Files that are whole or not there: written under another name, then renamed."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tomli_w
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


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The objects of a .jsonl file (none if it does not exist); a truncated last line is ignored."""
    if not file.exists():
        return
    with open(file, encoding="utf-8") as opened:
        for line in opened:
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], values: Mapping[str, Any], durable: bool = True
) -> None:
    """Tensors and plain values in one safetensors file."""
    flat = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    metadata = {"values": json.dumps(values)}
    write_atomic(path, lambda file: save_file(flat, file, metadata), durable)


def load_tensors(path: Path) -> tuple[State, dict[str, Any]]:
    """What `save_tensors` wrote; the tensors are copies, not views of the file."""
    try:
        content = path.read_bytes()
        tensors: State = load(content)
        values: dict[str, Any] = json.loads(_metadata(content).get("values", "{}"))
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    return tensors, values


def _metadata(content: bytes) -> dict[str, str]:
    """The texts in the header of a safetensors file: eight bytes say how long it is, then it is JSON."""
    end = 8 + int.from_bytes(content[:8], "little")
    texts: dict[str, str] = json.loads(content[8:end]).get("__metadata__", {})
    return texts
