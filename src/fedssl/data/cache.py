"""Decoding of images into memory, or into a cached file.

Pixels that exceed `data.memory_mb` are written as plain uint8 to `$FEDSSL_CACHE` (default
`~/.cache/fedssl/arrays`) and memory-mapped. The key of an entry depends on its source files (path, size,
modification time), so that changed files are decoded again. Interrupted decoding continues after the last
complete block. Entries may be deleted at any time.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import numpy as np
import torch
from filelock import FileLock
from numpy.typing import NDArray
from torch import Tensor

from fedssl.data.images import ImageSet
from fedssl.data.reading import readers
from fedssl.errors import DataError
from fedssl.storage import write_json

if TYPE_CHECKING:
    from fedssl.progress import Progress

Shape = tuple[int, int, int]
Entry = tuple[Path, dict[str, Any]]  # the file of pixels, and what is known about it

MEGABYTE = 1 << 20
BLOCK_BYTES = 1 << 25  # decoded and written at a time
DONE = "done.json"  # progress of an interrupted build
NAMED = 10  # files that a warning names; the others are counted


class Source(Protocol):
    """Reads images by number. Called from several threads."""

    def name(self, number: int) -> str:
        """The name of the image in messages."""

    def stamp(self, number: int) -> str:
        """A text that changes when the image changes."""

    def read(self, number: int, shape: Shape) -> NDArray[np.uint8]:
        """Decode an image to height × width × channels; any exception means that it cannot be read."""


@dataclass(frozen=True)
class Listing:
    """An `ImageSet` that is not decoded yet; `rows` are numbers in `source`."""

    source: Source
    rows: NDArray[np.int64]
    shape: Shape
    y: Tensor | None = None
    classes: tuple[str, ...] = ()
    domain: Tensor | None = None
    domains: tuple[str, ...] = ()
    name: str = ""
    warnings: tuple[str, ...] = ()
    attributes: Tensor | None = None
    mirrored: bool = True

    def __len__(self) -> int:
        return len(self.rows)

    def subset(self, indices: NDArray[np.int64] | Tensor) -> Listing:
        """The images at these indices, in that order."""
        index = torch.as_tensor(indices, dtype=torch.int64)
        return replace(
            self,
            rows=self.rows[index.numpy()],
            y=None if self.y is None else self.y[index],
            domain=None if self.domain is None else self.domain[index],
            attributes=None if self.attributes is None else self.attributes[index],
        )


def count_unreadable(notes: Iterable[str]) -> int:
    """Count the images that `decode` left out, from its warnings."""
    found = (re.search(r": (\d+) of \d+ images left out: ", note) for note in notes)
    return sum(int(match.group(1)) for match in found if match)


def decode(listing: Listing, memory_mb: int, progress: Progress | None = None) -> ImageSet:
    """Decode a listing; images that cannot be read are left out and named in the warnings."""
    needed = len(listing) * prod(listing.shape)
    if needed <= memory_mb * MEGABYTE:
        x, failed = _into_memory(listing, progress)
    else:
        stamps = (listing.source.stamp(int(row)) for row in listing.rows)
        path, about = stored(
            key_of([*stamps, str(listing.shape)]), needed, lambda file: _into_file(listing, file, progress)
        )
        failed = {int(row): reason for row, reason in about["failed"].items()}
        x = open_pixels(path, about["shape"], memory_mb)
    if len(failed) == len(listing):
        raise DataError(
            f"{listing.name}: none of {len(listing)} images can be read: {_some(listing, failed)}"
        )
    left = np.delete(np.arange(len(listing)), list(failed))
    kept = listing.subset(left) if failed else listing
    notes = listing.warnings
    if failed:
        notes = (
            *notes,
            f"{listing.name}: {len(failed)} of {len(listing)} images left out: {_some(listing, failed)}",
        )
    return ImageSet(
        x,
        kept.y,
        kept.classes,
        kept.domain,
        kept.domains,
        kept.name,
        notes,
        mirrored=kept.mirrored,
        attributes=kept.attributes,
    )


def folder() -> Path:
    """The folder of cached pixels."""
    return Path(os.environ.get("FEDSSL_CACHE") or "~/.cache/fedssl/arrays").expanduser()


def key_of(stamps: Iterable[str]) -> str:
    """The key of a cache entry, a hash of stamps."""
    digest = hashlib.blake2b(digest_size=16)
    for stamp in stamps:
        digest.update(os.fsencode(stamp) + b"\0\0")
    return digest.hexdigest()


def file_stamp(path: str | Path) -> str:
    """A file's path, size and modification time."""
    state = os.stat(path)
    return f"{os.path.abspath(path)}\0{state.st_size}\0{state.st_mtime_ns}"


def stored(key: str, needed: int, write: Callable[[BinaryIO], dict[str, Any]]) -> Entry:
    """Load a cache entry, or create it.

    Args:
        key: the key of the entry.
        needed: its size in bytes.
        write: appends pixels with `append`, and returns plain values, among them their "shape". The file may
            contain the pixels of an interrupted call.

    Returns:
        The file of pixels, and the values that `write` returned when it was created. An entry appears under
        its name only when it is complete; other processes wait for it.
    """
    try:
        found = find(key)
        if found is None:
            folder().mkdir(parents=True, exist_ok=True)
            with FileLock(folder() / f"{key}.lock"):
                found = find(key) or _build(folder() / key, needed, write)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_room(needed) from error
        raise DataError(
            f"decoded images cannot be cached in {folder()}: {error}; set FEDSSL_CACHE to a writable folder, "
            "or data.memory_mb to more than the size of the images"
        ) from error
    return found


def find(key: str) -> Entry | None:
    """The complete entry under `key`, if there is one."""
    entry = folder() / key
    try:
        about: dict[str, Any] = json.loads((entry / "about.json").read_text())
        whole = (entry / "pixels").stat().st_size == prod(about["shape"])
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return (entry / "pixels", about) if whole else None


def append(file: BinaryIO, pixels: NDArray[np.uint8]) -> None:
    """Write pixels by plain writes: a full disk then raises an error, where a memory map would crash."""
    file.write(np.ascontiguousarray(pixels).data)


def open_pixels(path: Path, shape: Iterable[int], memory_mb: int) -> Tensor:
    """Read pixels into memory if they fit; otherwise map them read-only."""
    dimensions = tuple(shape)
    if prod(dimensions) <= memory_mb * MEGABYTE:
        return torch.from_numpy(np.fromfile(path, dtype=np.uint8).reshape(dimensions))
    # Linux refuses copy-on-write maps that are larger than its memory.
    mapped = np.memmap(path, dtype=np.uint8, mode="r", shape=dimensions)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*", category=UserWarning)
        return torch.from_numpy(mapped)


def _build(entry: Path, needed: int, write: Callable[[BinaryIO], dict[str, Any]]) -> Entry:
    part = entry.with_name(f"{entry.name}.part")
    shutil.rmtree(entry, ignore_errors=True)  # damaged
    part.mkdir(exist_ok=True)
    pixels = part / "pixels"
    pixels.touch()
    if shutil.disk_usage(entry.parent).free < needed - pixels.stat().st_size:
        shutil.rmtree(part, ignore_errors=True)
        raise _no_room(needed)
    try:
        with open(pixels, "r+b") as file:
            about = write(file)
            file.truncate()
            _sync(file)
        (part / DONE).unlink(missing_ok=True)
        (part / "about.json").write_text(json.dumps(about))
        part.rename(entry)
    except Exception:  # after an interruption instead, the files stay for the next build
        shutil.rmtree(part, ignore_errors=True)
        raise
    return entry / "pixels", about


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _no_room(needed: int) -> DataError:
    free = shutil.disk_usage(folder()).free
    return DataError(
        f"decoded images need {-(-needed // MEGABYTE):,} MB in {folder()}, but {free // MEGABYTE:,} MB are "
        "free: free disk space, set FEDSSL_CACHE to another disk, or lower data.size or data.limit"
    )


def _into_memory(listing: Listing, progress: Progress | None) -> tuple[Tensor, dict[int, str]]:
    failed: dict[int, str] = {}
    pixels = np.empty((len(listing), *listing.shape), dtype=np.uint8)
    filled = 0
    for _, block in _blocks(listing, failed, progress):
        pixels[filled : filled + len(block)] = block
        filled += len(block)
    return torch.from_numpy(pixels[:filled]), failed


def _into_file(listing: Listing, file: BinaryIO, progress: Progress | None) -> dict[str, Any]:
    """Continue a build, recording the progress after every block."""
    size, journal = prod(listing.shape), Path(file.name).with_name(DONE)
    start, failed = _done(journal, Path(file.name), size)
    file.seek((start - len(failed)) * size)
    for stop, block in _blocks(listing, failed, progress, start):
        append(file, block)
        _sync(file)
        write_json(journal, {"done": stop, "failed": failed})
    return {"shape": [len(listing) - len(failed), *listing.shape], "failed": failed}


def _done(journal: Path, pixels: Path, size: int) -> tuple[int, dict[int, str]]:
    """The number of images that an interrupted build has done, and those that could not be read."""
    try:
        noted = json.loads(journal.read_text())
        done, failed = int(noted["done"]), {int(row): str(why) for row, why in noted["failed"].items()}
    except (OSError, ValueError, KeyError):
        return 0, {}
    return (done, failed) if pixels.stat().st_size >= (done - len(failed)) * size else (0, {})


def _blocks(
    listing: Listing, failed: dict[int, str], progress: Progress | None, first: int = 0
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Decode images block by block; yields the number of images that are done, and the block.

    Images that cannot be read are added to `failed`.
    """

    def read(index: int) -> NDArray[np.uint8] | None:
        try:
            return listing.source.read(int(listing.rows[index]), listing.shape)
        except MemoryError:
            raise
        except Exception as error:  # decoders raise many types on damaged files
            failed[index] = str(error) or type(error).__name__
            return None

    step = max(1, BLOCK_BYTES // prod(listing.shape))
    with readers() as several:
        for start in range(first, len(listing), step):
            stop = min(start + step, len(listing))
            good = [image for image in several.read(read, range(start, stop)) if image is not None]
            if progress is not None:
                progress(stop, len(listing), f"decoding {listing.name}")
            if good:
                yield stop, np.stack(good)


def _some(listing: Listing, failed: dict[int, str]) -> str:
    named = [
        f"{listing.source.name(int(listing.rows[index]))} ({failed[index]})"
        for index in sorted(failed)[:NAMED]
    ]
    return list_some(named, len(failed))


def list_some(names: list[str], total: int) -> str:
    """Join the first names for a warning, and count the rest."""
    rest = total - len(names[:NAMED])
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest else "")
