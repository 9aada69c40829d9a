"""How varied generated images are: precision and recall, and distances within a label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from fedssl.errors import DataError
from fedssl.generative.fid import describe_features, matching_latents
from fedssl.generative.reference_classifier import ReferenceClassifier, load_reference_classifier
from fedssl.generative.sampling import BATCH, ClientGenerators
from fedssl.generative.use import Use


class Diversity(Use):
    """Precision, recall and variety of each client's generator, relative to its own training images.

    `precision` is the share of generated images within the manifold of real ones, `recall` the share of
    real images within the manifold of generated ones (Kynkäänniemi et al. 2019), in the features of the
    reference classifier. `variety` is the mean distance between two generated images of a class, divided
    by that of real images.
    """

    count: int = Field(1000, ge=2, description="number of real and of generated images per client, at most")
    neighbours: int = Field(3, ge=1, description="k of the nearest-neighbor radius around an image")

    def apply(self, generators: ClientGenerators, folder: Path) -> dict[str, Any]:
        classifier, rows = load_reference_classifier(generators), []
        for client in range(generators.clients):
            real, labels = generators.train_images(client, self.count)
            if len(real) <= self.neighbours:
                raise DataError(f"client {client} has {len(real)} images: use fewer neighbors")
            fake = generators.draw(client, matching_latents(generators, client, labels, len(real)))
            shown = labels if generators.classes else classifier.labels(fake, client)
            assert labels is not None  # the classifier was trained with labels
            assert shown is not None
            a, b = (_features(classifier, images) for images in (real, fake))
            precision, recall = precision_and_recall(a, b, self.neighbours)
            rows.append({"precision": precision, "recall": recall, "variety": variety(a, labels, b, shown)})
        means = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
        return {**means, "clients": rows, "features": describe_features(classifier)}


def precision_and_recall(real: Tensor, fake: Tensor, neighbours: int) -> tuple[float, float]:
    """Improved precision and recall (Kynkäänniemi et al. 2019).

    Args:
        real: features of real images [N, D].
        fake: features of generated images [M, D].
        neighbours: an image's radius is the distance to this nearest neighbor of its own kind.

    Returns:
        The share of fakes within the radius of a real image, and of real images within that of a fake.
    """
    between = torch.cdist(real, fake)
    return (
        float((between <= _radius(real, neighbours)[:, None]).any(0).float().mean()),
        float((between <= _radius(fake, neighbours)[None]).any(1).float().mean()),
    )


def variety(real: Tensor, real_labels: Tensor, fake: Tensor, fake_labels: Tensor) -> float:
    """Mean distance between two fakes of a class over that of real images, averaged over classes.

    Only classes with at least two images of each kind count; 0 if there are no such classes.
    """
    ratios = []
    for label in sorted(set(real_labels.tolist())):
        a, b = real[real_labels == label], fake[fake_labels == label]
        if min(len(a), len(b)) > 1:
            ratios.append(float(torch.pdist(b).mean() / torch.pdist(a).mean().clamp_min(1e-12)))
    return sum(ratios) / len(ratios) if ratios else 0.0


def _radius(features: Tensor, neighbours: int) -> Tensor:
    """The distance to the k-th neighbor; the nearest image to each is itself."""
    return torch.cdist(features, features).kthvalue(neighbours + 1, dim=1).values


def _features(classifier: ReferenceClassifier, images: Tensor) -> Tensor:
    return torch.cat([classifier.features(part).cpu() for part in torch.split(images, BATCH)]).double()
