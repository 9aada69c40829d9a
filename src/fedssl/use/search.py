"""Similar images, near-duplicates and outliers, by the cosine of embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedssl.errors import DataError
from fedssl.use.embed import Embedded

BLOCK = 2048  # rows compared with all others at a time: 2048 × 100,000 similarities take 0.8 GB


class Hit(NamedTuple):
    """An image by its index, and its similarity."""

    number: int
    similarity: float


class Pair(NamedTuple):
    """Two similar images."""

    first: int
    second: int
    similarity: float


def nearest(found: Embedded, vector: Tensor, count: int = 10) -> list[Hit]:
    """Return the images most similar to a vector, best first; ties by position."""
    if vector.shape != found.vectors.shape[1:]:
        raise DataError(
            f"the embeddings have {found.vectors.shape[1]} dimensions, the image's {len(vector)}: "
            "they were computed by another encoder"
        )
    similar = F.normalize(found.vectors.double(), dim=1) @ F.normalize(vector.double(), dim=0)
    order = similar.argsort(descending=True, stable=True)[:count]
    return [Hit(int(number), float(similar[number])) for number in order]


def duplicates(found: Embedded, threshold: float = 0.99) -> list[Pair]:
    """Return pairs with at least this similarity, the most similar first."""
    unit = F.normalize(found.vectors, dim=1)
    pairs = []
    for start, similar in _blocks(unit):
        rows, columns = (similar >= threshold).nonzero(as_tuple=True)
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            if start + row < column:
                pairs.append(Pair(start + row, column, float(similar[row, column])))
    return sorted(pairs, key=lambda pair: (-pair.similarity, pair.first, pair.second))


def outliers(found: Embedded, count: int = 20, neighbours: int = 5) -> list[Hit]:
    """Return the images that are least similar to their nearest neighbors, by mean cosine."""
    if len(found) < 2:
        raise DataError("outliers need at least two images")
    unit = F.normalize(found.vectors, dim=1)
    near = min(neighbours, len(found) - 1)
    means = torch.cat(
        [_without_itself(start, similar).topk(near).values.mean(1) for start, similar in _blocks(unit)]
    )
    order = means.argsort(stable=True)[:count]
    return [Hit(int(number), float(means[number])) for number in order]


def strip(query: Path, found: Embedded, hits: list[Hit], file: Path) -> None:
    """Draw the query and the images found."""
    from matplotlib.figure import Figure
    from PIL import Image

    plot = Figure(figsize=(1.6 * (len(hits) + 1), 2.1), layout="constrained")
    shown = [(query, "query"), *((found.file(hit.number), f"{hit.similarity:.3f}") for hit in hits)]
    for axes, (path, title) in zip(plot.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        with Image.open(path) as image:
            axes.imshow(image.convert("RGB"))
        axes.set_title(title, fontsize=8)
        axes.set_axis_off()
    plot.savefig(file, dpi=120)


def _blocks(unit: Tensor) -> Iterator[tuple[int, Tensor]]:
    for start in range(0, len(unit), BLOCK):
        yield start, unit[start : start + BLOCK] @ unit.T


def _without_itself(start: int, similar: Tensor) -> Tensor:
    rows = torch.arange(len(similar))
    similar[rows, start + rows] = -torch.inf
    return similar
