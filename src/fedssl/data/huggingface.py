"""Image data sets from the Hugging Face hub, or saved on disk by `datasets`.

`data.root` is the name on the hub (`user/set`, or `user/set:configuration`) or a folder written by
`save_to_disk`; `data.split` is `TRAIN/TEST` or `TRAIN`, with the data set's names of its splits. Images are
treated like those of a folder.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedssl.data.cache import Listing, Shape, file_stamp
from fedssl.data.decoding import image_size, read_image
from fedssl.data.files import target_shape
from fedssl.data.sets import to_labels
from fedssl.errors import DataError, did_you_mean

if TYPE_CHECKING:
    from fedssl.data.options import DataConfig
    from fedssl.progress import Progress

LABELS = ("label", "labels", "fine_label")
TESTS = ("test", "validation", "valid", "val")


def load(config: DataConfig, progress: Progress | None = None) -> tuple[Listing, Listing | None]:
    """List the splits of `data.split`; by default `train` and, if there is one, `test` or `validation`."""
    datasets = _package()
    splits = _open(datasets, config.root)
    names = _choose(splits, config.split, config.root)
    notes: list[str] = []
    column = _image_column(datasets, splits[names[0]], config.root, notes)
    images = datasets.concatenate_datasets([splits[name].select_columns([column]) for name in names])
    rows = Rows.of(images.cast_column(column, datasets.Image(decode=False)), column, config)
    shape = target_shape(rows, len(images), config, notes, progress)
    listings = []
    start = 0
    for name in names:
        y, classes = _labels(datasets, splits[name], f"{config.root}, split {name}", notes)
        numbers = np.arange(start, start + len(splits[name]))
        if not len(numbers):
            raise DataError(f"{config.root}: split {name} is empty")
        listings.append(Listing(rows, numbers, shape, y, classes, name=config.root, warnings=tuple(notes)))
        start += len(numbers)
        notes = []
    return listings[0], listings[1] if len(listings) == 2 else None


@dataclass(frozen=True)
class Rows:
    """Images in the rows of a table."""

    table: Any
    column: str
    identity: str
    square: bool = False

    @classmethod
    def of(cls, table: Any, column: str, config: DataConfig) -> Rows:
        files = [file_stamp(file["filename"]) for file in table.cache_files]
        identity, square = "\0".join((config.root, str(len(table)), *files)), config.resize == "crop"
        return cls(table, column, f"{identity}\0square" if square else identity, square)

    def name(self, number: int) -> str:
        return f"row {number}"

    def stamp(self, number: int) -> str:
        return f"{self.identity}\0{number}"

    def size(self, number: int) -> tuple[int, int]:
        return image_size(self._file(number))

    def channels(self) -> int:
        return 3

    def read(self, number: int, shape: Shape) -> NDArray[np.uint8]:
        return read_image(self._file(number), shape, self.square)

    def _file(self, number: int) -> Path | IO[bytes]:
        image = self.table[number][self.column]
        if image is None:
            raise ValueError("no image")
        return Path(image["path"]) if image["bytes"] is None else io.BytesIO(image["bytes"])


def _package() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"data.name=huggingface: {error}; pip install fedssl[huggingface]") from error
    return datasets


def _open(datasets: Any, root: str) -> Mapping[str, Any]:
    """The splits of a set by their names."""
    if not root:
        raise DataError(
            "data.root is empty: set it to the data set's name on the hub, or a folder of save_to_disk"
        )
    place = Path(root).expanduser()
    try:
        if (place / "dataset_dict.json").is_file() or (place / "state.json").is_file():
            found = datasets.load_from_disk(str(place))
        elif place.is_dir():
            found = datasets.load_dataset(str(place))
        else:
            path, _, configuration = root.partition(":")
            found = datasets.load_dataset(path, configuration or None)
    except Exception as error:  # networks, servers and file formats fail in many ways
        reason = " ".join(str(error).split())
        raise DataError(
            f"{root} cannot be loaded from the Hugging Face hub or from disk: {reason}"
        ) from error
    splits: Mapping[str, Any] = found if isinstance(found, Mapping) else {str(found.split or "train"): found}
    return splits


def _choose(splits: Mapping[str, Any], wanted: str, root: str) -> list[str]:
    """Names of the train split and, if there is one, of the test split."""
    if not wanted:
        if len(splits) > 1 and "train" not in splits:
            raise DataError(f"{root} has splits {', '.join(splits)}: choose with data.split=TRAIN/TEST")
        train = "train" if "train" in splits else next(iter(splits))
        return [train, *[name for name in TESTS if name in splits and name != train][:1]]
    names = wanted.split("/")
    for name in names:
        if name not in splits:
            raise DataError(
                f"data.split={wanted!r}: {root} has no split {name!r}: {did_you_mean(name, splits)}"
            )
    if len(names) > 2:
        raise DataError(f"data.split={wanted!r}: at most two names, TRAIN/TEST")
    return names


def _image_column(datasets: Any, split: Any, root: str, notes: list[str]) -> str:
    columns = [name for name, kind in split.features.items() if isinstance(kind, datasets.Image)]
    if not columns:
        raise DataError(f"{root} has no column of images, only {', '.join(split.features)}")
    if len(columns) > 1:
        notes.append(f"{root} has image columns {', '.join(columns)}: using {columns[0]}")
    return str(columns[0])


def _labels(datasets: Any, split: Any, where: str, notes: list[str]) -> tuple[Tensor | None, tuple[str, ...]]:
    """Class numbers and names, of a column with a usual name or else the first with class names."""
    named = [name for name, kind in split.features.items() if isinstance(kind, datasets.ClassLabel)]
    column = next((name for name in (*LABELS, *named) if name in split.features), None)
    if column is None:
        return None, ()
    values = np.asarray(split.select_columns([column]).with_format("numpy")[:][column])
    if values.dtype.kind not in "iuf":
        notes.append(f"{where}: column {column} has {values.dtype}, not class numbers; labels are ignored")
        return None, ()
    if (values == -1).all():  # how the hub marks hidden labels
        return None, ()
    classes = tuple(split.features[column].names) if column in named else ()
    return to_labels(values, len(split), f"{where}, column {column}"), classes
