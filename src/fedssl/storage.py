"""Atomic files: written under a temporary name, then renamed.

Lines of metrics.jsonl have a checksum, so damaged lines are reported and not used. This module does not
import PyTorch, which Flower processes that only forward messages do not load.
"""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w

from fedssl.errors import RunError


def write_atomic(path: Path, write: Callable[[Path], None], durable: bool = True) -> None:
    """Let `write` fill a temporary file next to `path`, then rename it atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with room_for(path):
            write(temporary)
            if durable:
                with open(temporary, "rb") as file:
                    os.fsync(file.fileno())
            os.replace(temporary, path)
    except Exception:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Context manager that raises a readable error if the disk is full."""
    try:
        yield
    except Exception as error:
        if "No space left" in str(error) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
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


def write_sealed(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object as JSON with a checksum, which `read_json` verifies and omits."""
    text = json.dumps(value, indent=2)
    write_text(path, f'{text[:-2]},\n  "crc": "{zlib.crc32(text.encode()):08x}"\n}}\n')


def read_json(path: Path) -> dict[str, Any]:
    """Read the object in a JSON file; with a checksum, if it has one.

    Raises:
        RunError: it is missing or damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
        seal = SEAL.search(text)
        if seal and f"{zlib.crc32((text[: seal.start()] + END).encode()):08x}" != seal[1]:
            raise ValueError("its checksum does not match")
        loaded = json.loads(text[: seal.start()] + END if seal else text)
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
    if not isinstance(loaded, dict):
        raise RunError(f"{path} cannot be read: it contains no JSON object")
    if not seal and _resembles_checksum(*list(loaded.items())[-1:]):
        raise RunError(f"{path} cannot be read: its checksum is damaged")
    return loaded


# --- lines ----------------------------------------------------------------------------------------

HEX = re.compile("[0-9a-f]{8}")
SEAL, END = re.compile(r",\n  \"crc\": \"([0-9a-f]{8})\"\n}\n?$"), "\n}"  # of a whole file
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
        raise ValueError("its checksum does not match")
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
    with room_for(file), open(file, "a+b") as opened:
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
