"""Writes a report of runs: used by `fedssl report` and `Run.report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedssl.report.html import images, page
from fedssl.report.html.data import document

if TYPE_CHECKING:
    from fedssl.progress import Progress


def write_report(
    runs: Sequence[str | Path],
    file: str | Path,
    *,
    fast: bool = False,
    projection: images.Projection = "tsne",
    centralized: str | Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Write one page about these runs.

    Args:
        runs: folders of runs; several are compared.
        file: the HTML file.
        fast: skip sections that need the images.
        projection: of the feature map.
        centralized: a run on all images in one place, which a single run is compared with.
        progress: called while images are loaded and plotted.

    Returns:
        The file.
    """
    write_document(runs, file, fast=fast, projection=projection, centralized=centralized, progress=progress)
    return Path(file)


def write_document(
    runs: Sequence[str | Path],
    file: str | Path,
    *,
    fast: bool,
    projection: images.Projection,
    centralized: str | Path | None,
    progress: Progress | None,
    names: Mapping[Path, str] | None = None,
) -> dict[str, Any]:
    """Like `write`, but also returns the document."""
    images.check(projection)
    page.check(Path(file))

    def draw(path: Path) -> dict[str, Any]:
        return images.look(path, projection, progress or images.silent)

    shown = document(runs, None if fast else draw, centralized=centralized, names=names)
    page.write(shown, Path(file))
    return shown
