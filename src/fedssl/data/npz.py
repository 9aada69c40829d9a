"""Images in .npz files: `x` uint8 N×H×W×C (or N×H×W), and optionally `y`, `classes`, `domain`, `domains`.

`data.root` is `NAME_train.npz` (`NAME_test.npz` in the same folder is then the test split), any other .npz,
or a folder with one `*_train.npz`. Pixels in members that are slow to decompress (LZMA, bzip2)
are decompressed once and cached (see cache.py).
"""

from __future__ import annotations

import lzma
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from torch import Tensor

from fedssl.data.cache import append, file_stamp, find, key_of, open_pixels, stored
from fedssl.data.images import ImageSet
from fedssl.data.sets import check_labels, check_pixels, to_labels
from fedssl.errors import DataError, did_you_mean
from fedssl.limits import npy_shape, physical_memory

if TYPE_CHECKING:
    from fedssl.data.options import DataConfig
    from fedssl.progress import Progress

SLOW = (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2)
MIN_CACHED = 4 << 20  # bytes; less is decompressed in half a second


def load(config: DataConfig, progress: Progress | None = None) -> tuple[ImageSet, ImageSet | None]:
    """Load the training and test images of `data.root`."""
    path = _find(config.root)
    train = _read(path, config.memory_mb, progress)
    other = path.with_name(path.name.removesuffix("_train.npz") + "_test.npz")
    if not path.name.endswith("_train.npz") or not other.is_file():
        return train, None
    test = _read(other, config.memory_mb, progress)
    if train.classes and test.classes and train.classes != test.classes:
        raise DataError(
            f"classes of {path} {_short(train.classes)} differ from those of {other} {_short(test.classes)}"
        )
    classes = train.classes or test.classes
    train, test = _with_all_domains(replace(train, classes=classes), replace(test, classes=classes))
    check_labels(train, str(path))
    check_labels(test, str(other))
    return train, test


def _with_all_domains(train: ImageSet, test: ImageSet) -> tuple[ImageSet, ImageSet]:
    """Give both splits one list of domains; test images may be from people or places without a client."""
    names = tuple(dict.fromkeys((*train.domains, *test.domains)))
    if test.domains and test.domain is not None:
        place = torch.tensor([names.index(name) for name in test.domains])
        test = replace(test, domain=place[test.domain])
    return replace(train, domains=names), replace(test, domains=names)


def _short(names: tuple[str, ...], most: int = 6) -> str:
    return f"{list(names[:most])}" + (f" and {len(names) - most} more" if len(names) > most else "")


def _find(root: str) -> Path:
    if not root:
        raise DataError("data.root is empty: set it to NAME_train.npz")
    path = Path(root).expanduser()
    if path.is_dir():
        found = sorted(path.glob("*_train.npz"))
        if len(found) != 1:
            names = ", ".join(file.name for file in found) or "none"
            raise DataError(f"{path} contains {len(found)} files *_train.npz ({names}): choose one")
        return found[0]
    if not path.is_file():
        near = sorted(file.name for file in path.parent.glob("*.npz"))
        raise DataError(f"no file {path}: {did_you_mean(path.name, near)}")
    return path


def _read(path: Path, memory_mb: int, progress: Progress | None) -> ImageSet:
    try:
        opened = np.load(path, allow_pickle=False)
        if not isinstance(opened, NpzFile):
            raise DataError(f"{path} is a single array (.npy): save an .npz with `x`, and `y` if known")
        with opened as file:
            _check_claims(path)
            if "x" not in file:
                raise DataError(f"{path} has no `x`, only {', '.join(file.files) or 'nothing'}")
            x, notes = _pixels(path, file, memory_mb, progress)
            y, classes = _named(path, file, "y", "classes", len(x))
            domain, domains = _named(path, file, "domain", "domains", len(x))
    except ValueError as error:
        if "pickle" not in str(error):
            raise DataError(f"{path} cannot be read: {error}") from error
        raise DataError(
            f"{path} contains Python objects (a pickle), or is not an .npz file. Pickles can run code and "
            "are never loaded: save `x` as uint8, `y` as integers, `classes` as strings"
        ) from error
    except (
        OSError,
        EOFError,
        MemoryError,
        RuntimeError,  # an encrypted member
        zipfile.BadZipFile,
        KeyError,
        zlib.error,
        lzma.LZMAError,
        NotImplementedError,
    ) as error:
        raise DataError(f"{path} cannot be read: {error or type(error).__name__}") from error
    name = path.name.removesuffix(".npz").removesuffix("_train").removesuffix("_test")
    images = ImageSet(x, y, classes, domain, domains, name, notes)
    check_labels(images, str(path))
    return images


def _pixels(
    path: Path, file: NpzFile, memory_mb: int, progress: Progress | None
) -> tuple[Tensor, tuple[str, ...]]:
    """Read `x`, from the cache if possible; returns warnings if it could not be cached."""
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("x.npy")
    what = f"reading {path.name}"
    if progress is not None:
        progress(0, member.file_size, what)
    x, notes = _kept(path, file, memory_mb) if _is_slow(member) else (_decompress(path, file), ())
    if progress is not None:
        progress(member.file_size, member.file_size, what)
    return x, notes


def _check_claims(path: Path) -> None:
    """Raise a DataError if an array claims more than its member has, or more than this machine's memory."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                continue
            if member.file_size > physical_memory():
                raise DataError(
                    f"{path}: {member.filename} needs {member.file_size:,} bytes, more than there is memory"
                )
            try:
                with archive.open(member) as opened:
                    npy_shape(cast(BinaryIO, opened), member.file_size)
            except ValueError as error:
                raise DataError(f"{path}: {member.filename}: {error}") from None


def _is_slow(member: zipfile.ZipInfo) -> bool:
    return member.compress_type in SLOW and member.file_size >= MIN_CACHED


def _kept(path: Path, file: NpzFile, memory_mb: int) -> tuple[Tensor, tuple[str, ...]]:
    key = key_of([file_stamp(path)])
    entry = find(key)
    if entry is None:
        x = _decompress(path, file)

        def write(out: BinaryIO) -> dict[str, Any]:
            append(out, x.numpy())
            return {"shape": list(x.shape)}

        try:
            entry = stored(key, x.numel(), write)
        except DataError as error:  # caching is optional
            return x, (f"{path.name} is decompressed again in each run: {error}",)
    pixels, about = entry
    return open_pixels(pixels, about["shape"], memory_mb), ()


def _decompress(path: Path, file: NpzFile) -> Tensor:
    values = file["x"]
    if values.dtype != np.uint8:
        raise DataError(f"{path}: `x` must be uint8 (0..255), not {values.dtype}")
    x = torch.from_numpy(values[..., None] if values.ndim == 3 else values)
    check_pixels(x, str(path))
    return x


def _named(
    path: Path, file: NpzFile, key: str, names_key: str, count: int
) -> tuple[Tensor | None, tuple[str, ...]]:
    """Numbers and their names; names without numbers are ignored."""
    if key not in file:
        return None, ()
    numbers = to_labels(file[key], count, f"{path}, `{key}`")
    if names_key not in file:
        return numbers, ()
    names = file[names_key]
    if names.ndim != 1 or names.dtype.kind not in "US":
        raise DataError(
            f"{path}: `{names_key}` must be a list of names, not {names.dtype} of shape {names.shape}"
        )
    return numbers, tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names.tolist())
