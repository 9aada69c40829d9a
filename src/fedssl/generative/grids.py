"""Grids of generated images, and how often they show the requested content."""

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
from fedssl.generative.reference_classifier import load_reference_classifier
from fedssl.generative.sampling import ClientGenerators
from fedssl.generative.use import Use
from fedssl.objectives.generative.losses import Latents

MIN_SIDE = 28  # pixels; smaller images are magnified
TITLE, GAP = 12, 8  # pixels above and between panels
SAMPLES = 64  # contents (or images per label) that numbers are computed on; pictures show fewer


class Grid(Use):
    """Each client's images: styles vary down a column, contents along a row (Figs. 6, 10, 11)."""

    rows: int = Field(6, ge=1, description="number of styles")
    columns: int = Field(10, ge=1, description="number of contents; of a conditional model also of labels")
    real: int = Field(1, ge=0, description="rows of the client's real images at the top")

    def apply(self, generators: ClientGenerators, folder: Path) -> dict[str, Any]:
        crossed = cross(generators, self.rows, self.columns)
        panels = {}
        for client in range(generators.clients):
            real = generators.train_images(client, self.real * self.columns)[0]
            panels[f"client {client}"] = torch.cat((real, generators.draw(client, crossed)))
        file = self.file(folder, "grid")
        save_panels(file, panels, self.columns)
        return {"picture": str(file), **self._content_kept(generators)}

    def _content_kept(self, generators: ClientGenerators) -> dict[str, Any]:
        """How often two styles of a content show the same label, and how often it is the requested one."""
        if generators.run.federation.train.y is None:
            return {}
        classifier, crossed = load_reference_classifier(generators), cross(generators, 2, SAMPLES)
        kept, right = [], []
        for client in range(generators.clients):
            labels = classifier.labels(generators.draw(client, crossed), client)
            kept.append(_share(labels[:SAMPLES] == labels[SAMPLES:]))
            if crossed.labels is not None:
                right.append(_share(labels == crossed.labels))
        found: dict[str, Any] = {"content_kept": _mean(kept), "clients": kept}
        if right:
            found["recognised"] = _mean(right)
        return {**found, "classifier_accuracy": classifier.accuracy}


class AcrossClients(Use):
    """The same content and style at every client: one row each (Figs. 7, 10a)."""

    columns: int = Field(16, ge=1, description="number of images")

    def apply(self, generators: ClientGenerators, folder: Path) -> dict[str, Any]:
        shown = _head(cross(generators, 1, max(self.columns, SAMPLES)), self.columns)
        rows = [generators.draw(client, shown) for client in range(generators.clients)]
        file = self.file(folder, "clients")
        save_panels(file, {"": torch.cat(rows)}, self.columns)
        return {"picture": str(file), **self._agreement(generators)}

    def _agreement(self, generators: ClientGenerators) -> dict[str, Any]:
        """How often two clients generate the same label from the same content."""
        clients = range(generators.clients)
        if generators.run.federation.train.y is None or len(clients) < 2:
            return {}
        classifier, latents = load_reference_classifier(generators), cross(generators, 1, SAMPLES)
        labels = [classifier.labels(generators.draw(client, latents), client) for client in clients]
        pairs = [_share(a == b) for a, b in combinations(labels, 2)]
        return {"content_kept": _mean(pairs), "classifier_accuracy": classifier.accuracy}


class Labels(Use):
    """Images of every label from every client, and how many the classifier recognizes (Fig. 6)."""

    rows: int = Field(1, ge=1, description="images of each label in the picture")

    def apply(self, generators: ClientGenerators, folder: Path) -> dict[str, Any]:
        if not generators.classes:
            raise ConfigError(
                f"objective.name={generators.run.trained.objective.name} has no labels: train conditional-gan"
            )
        classifier, names = load_reference_classifier(generators), range(generators.classes)
        labels = torch.arange(generators.classes).repeat_interleave(SAMPLES)
        latents = generators.latents(len(labels), "labels")
        latents = Latents(latents.content, latents.style, labels)
        rows: list[dict[str, Any]] = []
        panels = {}
        for client in range(generators.clients):
            drawn, seen = generators.draw(client, latents), generators.seen_labels(client)
            right = (classifier.labels(drawn, client) == labels).view(-1, SAMPLES).float().mean(1)
            unseen = [label for label in names if label not in seen]
            rows.append({"client": client, "seen": seen, "recognised": right.tolist()})
            shown = drawn.view(generators.classes, SAMPLES, *drawn.shape[1:])[:, : self.rows]
            title = f"client {client}, unseen: {' '.join(map(str, unseen)) or 'no label'}"
            panels[title] = shown.transpose(0, 1).reshape(-1, *drawn.shape[1:])
        file = self.file(folder, "labels")
        save_panels(file, panels, generators.classes)
        seen = [row["recognised"][label] for row in rows for label in names if label in row["seen"]]
        unseen = [row["recognised"][label] for row in rows for label in names if label not in row["seen"]]
        return {
            "picture": str(file),
            "seen": _mean(seen),
            "unseen": _mean(unseen) if unseen else None,
            "clients": rows,
            "classifier_accuracy": classifier.accuracy,
        }


def cross(generators: ClientGenerators, styles: int, contents: int) -> Latents:
    """Combine every style with every content, style by style; contents have the labels 0, 1, 2, …"""
    by_content = generators.latents(contents, "grid contents")
    by_style = generators.latents(styles, "grid styles")
    labels = torch.arange(contents) % generators.classes if generators.classes else None
    return Latents(
        by_content.content.repeat(styles, 1),
        by_style.style.repeat_interleave(contents, 0),
        None if labels is None else labels.repeat(styles),
    )


def save_panels(file: Path, panels: dict[str, Tensor], columns: int, per_row: int = 4) -> None:
    """Save grids of images with their titles as one PNG; small images are magnified.

    Args:
        file: the PNG to write.
        panels: uint8 images [N, H, W, C] by title.
        columns: images per row of a panel.
        per_row: panels per row of the picture, at most.
    """
    side = max(next(iter(panels.values())).shape[1:3])
    zoom = max(1, math.ceil(MIN_SIDE / side))
    sheets = {title: _magnify(sheet(images, columns), zoom) for title, images in panels.items()}
    across = min(per_row, len(sheets))
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
    """Arrange images [N, H, W, C] in a grid with gray lines between them."""
    count, height, width, channels = images.shape
    rows = math.ceil(count / columns)
    page = torch.full((rows * (height + 1) + 1, columns * (width + 1) + 1, channels), 128, dtype=torch.uint8)
    for place, image in enumerate(images):
        top, left = (place // columns) * (height + 1) + 1, (place % columns) * (width + 1) + 1
        page[top : top + height, left : left + width] = image
    return page


def _magnify(page: Tensor, zoom: int) -> Tensor:
    return page.repeat_interleave(zoom, 0).repeat_interleave(zoom, 1)


def _head(latents: Latents, count: int) -> Latents:
    labels = None if latents.labels is None else latents.labels[:count]
    return Latents(latents.content[:count], latents.style[:count], labels)


def _share(truths: Tensor) -> float:
    return float(truths.float().mean())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
