"""How varied generated images are: precision and recall, and distances within a label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from fedssl.errors import DataError
from fedssl.generative.fid import alike, described
from fedssl.generative.judge import Judge, find_judge
from fedssl.generative.sampling import BATCH, Studio
from fedssl.generative.use import Use


class Diversity(Use):
    """Precision, recall and variety of each client's generator, beside its own training images.

    `precision` is the share of generated images that lie among real ones, `recall` the share of real
    images that lie among generated ones (Kynkäänniemi et al. 2019, in the features of a classifier).
    `variety` is the mean distance between two generated images of a label, divided by that of real images.
    """

    count: int = Field(1000, ge=2, description="images of each kind, at most as many as a client has")
    neighbours: int = Field(3, ge=1, description="an image reaches as far as its neighbour of this number")

    def do(self, studio: Studio, folder: Path) -> dict[str, Any]:
        judge, rows = find_judge(studio), []
        for client in range(studio.clients):
            real, labels = studio.train_images(client, self.count)
            if len(real) <= self.neighbours:
                raise DataError(f"client {client} has {len(real)} images: use fewer neighbours")
            fake = studio.draw(client, alike(studio, client, labels, len(real)))
            shown = labels if studio.classes else judge.labels(fake, client)
            assert labels is not None  # the classifier was trained with labels
            assert shown is not None
            a, b = (_features(judge, images) for images in (real, fake))
            precision, recall = precision_and_recall(a, b, self.neighbours)
            rows.append({"precision": precision, "recall": recall, "variety": variety(a, labels, b, shown)})
        means = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
        return {**means, "clients": rows, "features": described(judge)}


def precision_and_recall(real: Tensor, fake: Tensor, neighbours: int) -> tuple[float, float]:
    """The share of fakes within reach of a real image, and the share of real images within reach of a fake.

    Args:
        real: features of real images [N, D].
        fake: features of generated images [M, D].
        neighbours: an image reaches as far as its neighbour of this number among images of its own kind.
    """
    between = torch.cdist(real, fake)
    return (
        float((between <= _reach(real, neighbours)[:, None]).any(0).float().mean()),
        float((between <= _reach(fake, neighbours)[None]).any(1).float().mean()),
    )


def variety(real: Tensor, real_labels: Tensor, fake: Tensor, fake_labels: Tensor) -> float:
    """Mean distance between two fakes of a label over that of real images; mean over labels both have.

    A label needs two images of each kind; without such a label it is 0.
    """
    ratios = []
    for label in sorted(set(real_labels.tolist())):
        a, b = real[real_labels == label], fake[fake_labels == label]
        if min(len(a), len(b)) > 1:
            ratios.append(float(torch.pdist(b).mean() / torch.pdist(a).mean().clamp_min(1e-12)))
    return sum(ratios) / len(ratios) if ratios else 0.0


def _reach(features: Tensor, neighbours: int) -> Tensor:
    """The distance to the neighbour of this number; the nearest image to each is itself."""
    return torch.cdist(features, features).kthvalue(neighbours + 1, dim=1).values


def _features(judge: Judge, images: Tensor) -> Tensor:
    return torch.cat([judge.features(part).cpu() for part in torch.split(images, BATCH)]).double()
