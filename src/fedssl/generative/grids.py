"""Pictures of what generators draw, and whether what they draw is what was asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from pydantic import Field
from torch import Tensor

from fedssl.errors import ConfigError
from fedssl.generative.judge import find_judge
from fedssl.generative.sampling import Studio
from fedssl.generative.use import Use
from fedssl.objectives.generative.losses import Latents

SEEN = 28  # pixels a side that an image in a picture has at least
TITLE, GAP = 12, 8  # pixels above and between panels
JUDGED = 64  # contents (or images a label) that numbers are taken over; pictures show fewer


class Grid(Use):
    """Each client's images: down a column the style changes, along a row the content (Figs. 6, 10, 11)."""

    rows: int = Field(6, ge=1, description="styles")
    columns: int = Field(10, ge=1, description="contents; of a conditional model also labels, 0 and up")
    real: int = Field(1, ge=0, description="rows of the client's real images above")

    def do(self, studio: Studio, folder: Path) -> dict[str, Any]:
        crossed = cross(studio, self.rows, self.columns)
        panels = {}
        for client in range(studio.clients):
            real = studio.train_images(client, self.real * self.columns)[0]
            panels[f"client {client}"] = torch.cat((real, studio.draw(client, crossed)))
        file = self.file(folder, "grid")
        save_panels(file, panels, self.columns)
        return {"picture": str(file), **self._kept(studio)}

    def _kept(self, studio: Studio) -> dict[str, Any]:
        """How often two styles of a content show the same label, and how often it is the one asked for."""
        if studio.run.federation.train.y is None:
            return {}
        judge, crossed = find_judge(studio), cross(studio, 2, JUDGED)
        kept, right = [], []
        for client in range(studio.clients):
            found = judge.labels(studio.draw(client, crossed), client)
            kept.append(_share(found[:JUDGED] == found[JUDGED:]))
            if crossed.labels is not None:
                right.append(_share(found == crossed.labels))
        shares = {"content_kept": _mean(kept), "clients": kept}
        return {**shares, **({"recognised": _mean(right)} if right else {}), "judge": judge.accuracy}


class Across(Use):
    """The same content and style at every client: one row each (Figs. 7, 10a)."""

    columns: int = Field(16, ge=1, description="images")

    def do(self, studio: Studio, folder: Path) -> dict[str, Any]:
        shown = _first(cross(studio, 1, max(self.columns, JUDGED)), self.columns)
        rows = [studio.draw(client, shown) for client in range(studio.clients)]
        file = self.file(folder, "clients")
        save_panels(file, {"": torch.cat(rows)}, self.columns)
        return {"picture": str(file), **self._agreement(studio)}

    def _agreement(self, studio: Studio) -> dict[str, Any]:
        """How often two clients draw the same label from the same content."""
        if studio.run.federation.train.y is None or studio.clients < 2:
            return {}
        judge, latents = find_judge(studio), cross(studio, 1, JUDGED)
        found = [judge.labels(studio.draw(client, latents), client) for client in range(studio.clients)]
        pairs = [_share(a == b) for a, b in combinations(found, 2)]
        return {"content_kept": _mean(pairs), "judge": judge.accuracy}


class Labels(Use):
    """Every label at every client, those it never saw too, and how many a classifier recognises (Fig. 6)."""

    rows: int = Field(1, ge=1, description="images of each label in the picture")

    def do(self, studio: Studio, folder: Path) -> dict[str, Any]:
        if not studio.classes:
            raise ConfigError(
                f"objective.name={studio.run.trained.objective.name} draws no labels: train conditional-gan"
            )
        judge, names = find_judge(studio), range(studio.classes)
        labels = torch.arange(studio.classes).repeat_interleave(JUDGED)
        latents = studio.latents(len(labels), "labels")
        latents = Latents(latents.content, latents.style, labels)
        rows: list[dict[str, Any]] = []
        panels = {}
        for client in range(studio.clients):
            drawn, seen = studio.draw(client, latents), studio.seen_labels(client)
            right = (judge.labels(drawn, client) == labels).view(studio.classes, JUDGED).float().mean(1)
            unseen = [label for label in names if label not in seen]
            rows.append({"client": client, "seen": seen, "recognised": right.tolist()})
            shown = drawn.view(studio.classes, JUDGED, *drawn.shape[1:])[:, : self.rows]
            title = f"client {client}, never saw {' '.join(map(str, unseen)) or 'none of them'}"
            panels[title] = shown.transpose(0, 1).reshape(-1, *drawn.shape[1:])
        file = self.file(folder, "labels")
        save_panels(file, panels, studio.classes)
        seen = [row["recognised"][label] for row in rows for label in names if label in row["seen"]]
        unseen = [row["recognised"][label] for row in rows for label in names if label not in row["seen"]]
        return {
            "picture": str(file),
            "seen": _mean(seen),
            "unseen": _mean(unseen) if unseen else None,
            "clients": rows,
            "judge": judge.accuracy,
        }


def cross(studio: Studio, styles: int, contents: int) -> Latents:
    """Every style with every content, style by style; a content's label goes with it: 0, 1, 2, …"""
    by_content, by_style = studio.latents(contents, "grid contents"), studio.latents(styles, "grid styles")
    labels = torch.arange(contents) % studio.classes if studio.classes else None
    return Latents(
        by_content.content.repeat(styles, 1),
        by_style.style.repeat_interleave(contents, 0),
        None if labels is None else labels.repeat(styles),
    )


def save_panels(file: Path, panels: dict[str, Tensor], columns: int, wide: int = 4) -> None:
    """A PNG of grids of images, each with its title; small images are magnified until a person sees them."""
    side = max(next(iter(panels.values())).shape[1:3])
    zoom = max(1, math.ceil(SEEN / side))
    sheets = {title: _magnified(sheet(images, columns), zoom) for title, images in panels.items()}
    across = min(wide, len(sheets))
    height, width = (max(page.shape[axis] for page in sheets.values()) for axis in (0, 1))
    down = math.ceil(len(sheets) / across)
    channels = next(iter(sheets.values())).shape[2]
    paper = np.full((down * (height + TITLE), across * (width + GAP) - GAP, channels), 255, dtype=np.uint8)
    for place, page in enumerate(sheets.values()):
        top, left = (place // across) * (height + TITLE) + TITLE, (place % across) * (width + GAP)
        paper[top : top + page.shape[0], left : left + page.shape[1]] = page.numpy()
    picture = Image.fromarray(paper.squeeze(2) if channels == 1 else paper)
    pen = ImageDraw.Draw(picture)
    for place, title in enumerate(sheets):
        pen.text(((place % across) * (width + GAP) + 1, (place // across) * (height + TITLE)), title, fill=0)
    picture.save(file)


def sheet(images: Tensor, columns: int) -> Tensor:
    """Images [N, H, W, C] row by row on one sheet, with a grey line between them."""
    count, height, width, channels = images.shape
    rows = math.ceil(count / columns)
    page = torch.full((rows * (height + 1) + 1, columns * (width + 1) + 1, channels), 128, dtype=torch.uint8)
    for place, image in enumerate(images):
        top, left = (place // columns) * (height + 1) + 1, (place % columns) * (width + 1) + 1
        page[top : top + height, left : left + width] = image
    return page


def _magnified(page: Tensor, zoom: int) -> Tensor:
    return page.repeat_interleave(zoom, 0).repeat_interleave(zoom, 1)


def _first(latents: Latents, count: int) -> Latents:
    labels = None if latents.labels is None else latents.labels[:count]
    return Latents(latents.content[:count], latents.style[:count], labels)


def _share(truths: Tensor) -> float:
    return float(truths.float().mean())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
