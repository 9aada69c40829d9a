"""A folder of images: flat (no labels), `class/image`, or `style/class/image`, told apart by depth.

Top-level folders `train` and `test` are the splits, if there is a `train`. Colour is kept as RGB
(grey if `data.channels` is 1). Transparent images are laid on white, cameras' rotation marks are
followed, 16-bit greys are scaled to 8 bits, and of animations the first picture is taken. Files
that are not images, or cannot be read, are left out and named in the warnings.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from fedssl.data.cache import Listing, Shape, file_stamp, list_some
from fedssl.data.reading import readers
from fedssl.errors import DataError

if TYPE_CHECKING:
    from fedssl.data.options import DataConfig
    from fedssl.progress import Progress

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")
LAYOUTS = {1: "image", 2: "class/image", 3: "style/class/image"}
LARGEST = 224  # side that a folder's images get at most when data.size does not say
ORIENTATION = 0x0112  # Exif tag; its values 2..8 are undone by these
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

Parts = tuple[str, ...]  # a path below the root, folder by folder


def load(config: DataConfig, progress: Progress | None = None) -> tuple[Listing, Listing | None]:
    """The images below `data.root`, to be decoded."""
    if not config.root:
        raise DataError("data.root is empty: give the folder of images")
    root = Path(config.root).expanduser()
    if not root.is_dir():
        raise DataError(f"{root} is not a folder" if root.exists() else f"no folder {root}")
    notes: list[str] = []
    splits = _splits(root, notes)
    found = [_scan(place, notes) for place in splits]
    depths = [_depth(place, files) for place, files in zip(splits, found, strict=True)]
    if len(set(depths)) > 1:
        raise DataError(f"{root}: train is {LAYOUTS[depths[0]]}, but test is {LAYOUTS[depths[1]]}")
    every = [parts for split in found for parts in split]
    files = Files(
        [place.joinpath(*parts) for place, split in zip(splits, found, strict=True) for parts in split],
        root,
        square=config.resize == "crop",
    )
    classes, y = _numbered([parts[-2] for parts in every]) if depths[0] >= 2 else ((), None)
    domains, domain = _numbered([parts[0] for parts in every]) if depths[0] == 3 else ((), None)
    shape = target_shape(files, len(every), config, notes, progress)
    name = printable(root.resolve().name)
    whole = Listing(files, np.arange(len(every)), shape, y, classes, domain, domains, name)
    train = replace(whole.subset(np.arange(len(found[0]))), warnings=tuple(notes))
    return train, whole.subset(np.arange(len(found[0]), len(every))) if len(found) == 2 else None


@dataclass(frozen=True)
class Files:
    """Images in files of their own; `square`: only the largest square in the middle of each."""

    paths: Sequence[Path]
    root: Path
    square: bool = False

    def name(self, number: int) -> str:
        return printable(os.path.relpath(self.paths[number], self.root))

    def stamp(self, number: int) -> str:
        try:
            return f"{file_stamp(self.paths[number])}\0{self.square}"
        except OSError:
            return f"{self.paths[number]}\0gone"

    def size(self, number: int) -> tuple[int, int]:
        return image_size(self.paths[number])

    def read(self, number: int, shape: Shape) -> NDArray[np.uint8]:
        return read_image(self.paths[number], shape, self.square)


class Sized(Protocol):
    """A source whose images tell their size without being decoded."""

    def size(self, number: int) -> tuple[int, int]: ...


def target_shape(
    source: Sized, count: int, config: DataConfig, notes: list[str], progress: Progress | None
) -> Shape:
    """Height, width and channels to decode to; if it is not what the images have, `notes` says so."""
    channels = config.channels or 3
    if config.size:
        return config.size, config.size, channels

    def size(number: int) -> tuple[int, int] | None:
        try:
            height, width = source.size(number)
            return (min(height, width),) * 2 if config.resize == "crop" else (height, width)
        except MemoryError:
            raise
        except Exception:  # named with the reason when it is decoded
            return None

    sizes: Counter[tuple[int, int] | None] = Counter()
    step = 4096
    with readers() as several:
        for start in range(0, count, step):
            stop = min(start + step, count)
            sizes.update(several.read(size, range(start, stop)))
            if progress is not None:
                progress(stop, count, "reading image sizes")
    known = {size: times for size, times in sizes.items() if size is not None}
    if not known:
        return 1, 1, channels  # nothing can be read: decoding will say so, with names and reasons
    (height, width), *others = sorted(known)
    if not others and max(height, width) <= LARGEST:
        return height, width, channels
    sides = np.repeat(np.array(list(known)), list(known.values()), axis=0)
    side = min(LARGEST, max(1, round(float(np.median(sides)))))
    least, most = ("{}×{}".format(*extreme) for extreme in (sides.min(axis=0), sides.max(axis=0)))
    span = f"{len(known)} sizes ({least} to {most})" if others else least
    notes.append(
        f"images of {span} are resized to {side}×{side}, "
        f"their median side, at most {LARGEST}; data.size sets another"
    )
    return side, side, channels


def read_image(file: Path | IO[bytes], shape: Shape, square: bool = False) -> NDArray[np.uint8]:
    """One image, upright, at height × width × channels; a ValueError or OSError says why not."""
    height, width, channels = shape
    try:
        with Image.open(file) as image:
            # JPEG is decoded at a half, quarter or eighth where that leaves twice the pixels needed.
            image.draft(None, (2 * max(height, width), 2 * max(height, width)))
            image.load()
            picture = _upright(image)
    except UnidentifiedImageError:
        raise ValueError("not an image") from None
    if square:
        side = min(picture.size)
        left, top = (picture.width - side) // 2, (picture.height - side) // 2
        picture = picture.crop((left, top, left + side, top + side))
    picture = _opaque(picture).convert("L" if channels == 1 else "RGB")
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(picture).reshape(shape)


def image_size(file: Path | IO[bytes]) -> tuple[int, int]:
    """Height and width of the upright image, from its header."""
    with Image.open(file) as image:
        # Pillow turns TIFF files itself.
        turned = image.format != "TIFF" and image.getexif().get(ORIENTATION, 1) >= 5
        return (image.width, image.height) if turned else (image.height, image.width)


def printable(name: str) -> str:
    """A file name that can be written anywhere, whatever bytes it is made of."""
    return os.fsencode(name).decode(errors="replace")


def _splits(root: Path, notes: list[str]) -> list[Path]:
    """`root` alone, or its `train`, or its `train` and `test`."""
    if not (root / "train").is_dir():
        return [root]
    splits = [root / "train"] + ([root / "test"] if (root / "test").is_dir() else [])
    beside = sorted(printable(entry.name) for entry in _entries(root) if Path(entry.path) not in splits)
    if beside:
        notes.append(f"beside train and test, left out: {list_some(beside, len(beside))}")
    return splits


def _scan(root: Path, notes: list[str]) -> list[Parts]:
    """Paths of all images below `root`, sorted."""
    found: list[Parts] = []
    others: list[str] = []
    for parts in _walk(root, ()):
        if parts[-1].lower().endswith(SUFFIXES):
            found.append(parts)
        else:
            others.append(printable("/".join(parts)))
    if not found:
        raise DataError(f"{root} holds no images ({', '.join(suffix[1:] for suffix in SUFFIXES)})")
    if others:
        notes.append(
            f"{len(others)} files are not images, left out: {list_some(sorted(others), len(others))}"
        )
    return sorted(found)


def _walk(place: Path, above: Parts) -> Iterator[Parts]:
    """Every file, but nothing hidden; one level too many, so that images too deep are noticed."""
    for entry in _entries(place):
        parts = (*above, entry.name)
        if entry.is_dir():
            if len(parts) <= len(LAYOUTS):
                yield from _walk(Path(entry.path), parts)
        else:
            yield parts


def _entries(place: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(place) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{place} cannot be read: {error.strerror}") from error


def _depth(root: Path, files: Iterable[Parts]) -> int:
    first: dict[int, str] = {}
    count: Counter[int] = Counter()
    for parts in files:
        first.setdefault(len(parts), printable("/".join(parts)))
        count[len(parts)] += 1
    depth = max(count)
    if len(count) > 1 or depth not in LAYOUTS:
        found = ", ".join(f"{count[depth]} at depth {depth} ({first[depth]})" for depth in sorted(count))
        raise DataError(f"{root}: all images must be {', or all '.join(LAYOUTS.values())}; found {found}")
    return depth


def _numbered(names: list[str]) -> tuple[tuple[str, ...], Tensor]:
    """Names in order, and the number of each image's name among them."""
    distinct, numbers = np.unique(np.array(names, dtype=object), return_inverse=True)
    return tuple(printable(name) for name in distinct), torch.from_numpy(numbers.astype(np.int64))


def _upright(image: Image.Image) -> Image.Image:
    turn = UPRIGHT.get(image.getexif().get(ORIENTATION, 1))
    return image.copy() if turn is None else image.transpose(turn)


def _opaque(image: Image.Image) -> Image.Image:
    """Without transparency, in 8 bits."""
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("32-bit pixels have no fixed range")
        return Image.fromarray(np.rint(values / 257).astype(np.uint8))
    if image.mode == "F":
        raise ValueError("float pixels have no fixed range")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image
