"""A folder of images: flat (no labels), `class/image`, or `style/class/image`, distinguished by depth.

With `data.layout=site` the folders of `site/image` are sites, not classes. If there is a top-level folder
`train`, it and `test` are the splits. Files that are not images or cannot be read are left out and named in
the warnings.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedssl.data.cache import Listing, list_some
from fedssl.data.decoding import SUFFIXES
from fedssl.data.files import Table, listings, printable
from fedssl.errors import DataError

if TYPE_CHECKING:
    from fedssl.data.options import DataConfig
    from fedssl.progress import Progress

LAYOUTS = {1: "image", 2: "class/image", 3: "style/class/image"}

Parts = tuple[str, ...]  # a path below the root, folder by folder


def load(config: DataConfig, progress: Progress | None = None) -> tuple[Listing, Listing | None]:
    """List the images below `data.root`, to be decoded later."""
    if not config.root:
        raise DataError("data.root is empty: set it to the folder of images")
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
    by_site = config.layout == "site"
    if by_site and depths[0] == 1:
        raise DataError(f"{root}: data.layout=site needs a folder for each site")
    table = Table(
        [place.joinpath(*parts) for place, split in zip(splits, found, strict=True) for parts in split],
        labels=[parts[-2] for parts in every] if depths[0] == 3 or (depths[0] == 2 and not by_site) else None,
        sites=[parts[0] for parts in every] if depths[0] == 3 or by_site else None,
        test=[place > 0 for place, split in enumerate(found) for _ in split],
    )
    return listings(table, root, config, notes, progress)


def _splits(root: Path, notes: list[str]) -> list[Path]:
    """`root` alone, or its `train`, or its `train` and `test`."""
    if not (root / "train").is_dir():
        return [root]
    splits = [root / "train"] + ([root / "test"] if (root / "test").is_dir() else [])
    ignored = sorted(printable(entry.name) for entry in _entries(root) if Path(entry.path) not in splits)
    if ignored:
        notes.append(f"ignored next to train and test: {list_some(ignored, len(ignored))}")
    return splits


def _scan(root: Path, notes: list[str]) -> list[Parts]:
    """Paths of all images below `root`, sorted."""
    found: list[Parts] = []
    others: list[str] = []
    for parts in _walk(root, ()):
        if parts[-1].lower().endswith(SUFFIXES) and not _is_special(root.joinpath(*parts)):
            found.append(parts)
        else:
            others.append(printable("/".join(parts)))
    if not found:
        raise DataError(f"{root} contains no images ({', '.join(suffix[1:] for suffix in SUFFIXES)})")
    if others:
        notes.append(
            f"{len(others)} files are not images, left out: {list_some(sorted(others), len(others))}"
        )
    return sorted(found)


def _is_special(file: Path) -> bool:
    """Whether it is a pipe or a device, which may never end; broken links are named when they are read."""
    try:
        return not stat.S_ISREG(os.stat(file).st_mode)
    except OSError:
        return False


def _walk(place: Path, above: Parts) -> Iterator[Parts]:
    """Every file that is not hidden, down to one level more than allowed, to report images too deep."""
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
