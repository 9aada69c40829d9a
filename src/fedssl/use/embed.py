"""Embeddings of all images below a folder.

On a GPU, files are decoded while the encoder computes. On a CPU, decoding would compete with the encoder's
threads and slow both down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedssl.data.decoding import SUFFIXES, read_image
from fedssl.data.files import printable
from fedssl.data.reading import prefetch, readers
from fedssl.errors import DataError
from fedssl.storage import write_atomic
from fedssl.use.trained import Trained

if TYPE_CHECKING:
    from fedssl.progress import Progress

BATCH = 64


@dataclass
class Embedded:
    """Paths below a root with their vectors, and the files that could not be read."""

    root: Path
    paths: list[str] = field(default_factory=list)
    vectors: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    skipped: dict[str, str] = field(default_factory=dict)  # by path, the reason

    def __len__(self) -> int:
        return len(self.paths)

    def file(self, number: int) -> Path:
        return self.root / self.paths[number]


def find_images(root: Path) -> list[str]:
    """List all images below a folder at any depth, sorted, without hidden files."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder" if root.exists() else f"no folder {root}")
    found = [path.relative_to(root) for path in root.rglob("*") if path.suffix.lower() in SUFFIXES]
    shown = [path for path in found if not any(part.startswith(".") for part in path.parts)]
    if not shown:
        raise DataError(f"{root} contains no images ({', '.join(suffix[1:] for suffix in SUFFIXES)})")
    return sorted(str(path) for path in shown)


def embed(trained: Trained, folder: str | Path, progress: Progress | None = None) -> Embedded:
    """Embed all images below a folder, in memory."""
    found = Embedded(Path(folder).expanduser())
    vectors = []
    for paths, batch in embed_batches(trained, found, progress):
        found.paths += paths
        vectors.append(batch)
    if not vectors:
        raise DataError(f"none of the {len(found.skipped)} images in {found.root} can be read")
    found.vectors = torch.cat(vectors)
    return found


def embed_batches(
    trained: Trained, into: Embedded, progress: Progress | None = None
) -> Iterator[tuple[list[str], Tensor]]:
    """Yield paths and vectors in batches; unreadable files are recorded in `into.skipped`."""
    paths = find_images(into.root)
    batches, done = _decoded(into, paths, trained), 0
    for names, images, seen in batches if trained.device.type == "cpu" else prefetch(batches):
        done += seen
        if images:
            yield names, trained(np.stack(images))
        if progress is not None:
            progress(done, len(paths), "embedding images")


def _decoded(
    into: Embedded, paths: Sequence[str], trained: Trained
) -> Iterator[tuple[list[str], list[NDArray[np.uint8]], int]]:
    """Yield names and images of a batch, and the number of files processed for it."""

    def read(path: str) -> NDArray[np.uint8] | str:
        try:
            return read_image(into.root / path, trained.shape, trained.square, trained.window)
        except (OSError, ValueError) as error:
            return str(error) or type(error).__name__

    with readers() as several:
        for start in range(0, len(paths), BATCH):
            group = paths[start : start + BATCH]
            images, names = [], []
            for path, image in zip(group, several.read(read, group), strict=True):
                if isinstance(image, str):
                    into.skipped[printable(path)] = image
                else:
                    images.append(image)
                    names.append(printable(path))
            yield names, images, len(group)


def embed_one(trained: Trained, image: str | Path) -> Tensor:
    """Embed one image."""
    path = Path(image).expanduser()
    try:
        return trained(np.stack([read_image(path, trained.shape, trained.square, trained.window)]))[0]
    except FileNotFoundError:
        raise DataError(f"no image {path}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


# --- Parquet ----------------------------------------------------------------------------------------


def write_parquet(
    trained: Trained, folder: str | Path, file: str | Path, progress: Progress | None = None
) -> Embedded:
    """Write paths and vectors in batches, so that memory does not grow with the folder."""
    found = Embedded(Path(folder).expanduser())
    schema = pa.schema(
        [("path", pa.string()), ("vector", pa.list_(pa.float32(), trained.features))],
        metadata={"root": str(found.root.resolve()), "made_by": "fedssl"},
    )

    def write(temporary: Path) -> None:
        with pq.ParquetWriter(temporary, schema) as writer:
            for paths, vectors in embed_batches(trained, found, progress):
                flat = pa.array(vectors.reshape(-1).numpy())
                column = pa.FixedSizeListArray.from_arrays(flat, trained.features)
                writer.write_table(pa.table([pa.array(paths), column], schema=schema))
                found.paths += paths
        if not found.paths:
            raise DataError(f"none of the {len(found.skipped)} images in {found.root} can be read")

    write_atomic(Path(file), write)
    return found


def read_parquet(file: str | Path) -> Embedded:
    """Read a file written by `write_parquet`."""
    try:
        table = pq.read_table(file, columns=["path", "vector"])
    except FileNotFoundError:
        raise DataError(f"no file {file}") from None
    except (pa.ArrowInvalid, KeyError, OSError) as error:
        raise DataError(f"{file} does not contain embeddings: {str(error).splitlines()[0]}") from None
    width = table.schema.field("vector").type.list_size
    vectors = np.concatenate([chunk.flatten().to_numpy() for chunk in table["vector"].chunks])
    root = (table.schema.metadata or {}).get(b"root", b"").decode()
    return Embedded(Path(root), table["path"].to_pylist(), torch.from_numpy(vectors).view(-1, width))
