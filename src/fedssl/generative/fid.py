"""Fréchet inception distance between a client's images and generated ones (Heusel et al. 2017)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedssl.extras import installed
from fedssl.generative.reference_classifier import ReferenceClassifier, load_reference_classifier
from fedssl.generative.sampling import BATCH, ClientGenerators
from fedssl.generative.use import Use
from fedssl.objectives.generative.losses import Latents

WEIGHTS = "weights-inception-2015-12-05-6726825d.pth"


class FID(Use):
    """FID of each client, between its training images and as many generated ones."""

    count: int = Field(10_000, ge=2, description="number of real and of generated images per client, at most")
    features: Literal["auto", "inception", "classifier"] = Field(
        "auto",
        description="Inception's pool features (needs torch-fidelity and its weights), or those of a "
        "classifier trained on the data set; auto: Inception's if installed",
    )

    def apply(self, generators: ClientGenerators, folder: Path) -> dict[str, Any]:
        inception = self.features == "inception" or (self.features == "auto" and inception_available())
        classifier = None if inception else load_reference_classifier(generators)
        distances, counts = [], []
        for client in range(generators.clients):
            real, labels = generators.train_images(client, self.count)
            fake = generators.draw(client, matching_latents(generators, client, labels, len(real)))
            distances.append(frechet(real, fake, classifier, generators.device))
            counts.append(len(real))
        return {
            "features": describe_features(classifier),
            "images": counts,
            "clients": distances,
            "mean": sum(distances) / len(distances),
        }


def matching_latents(generators: ClientGenerators, client: int, labels: Tensor | None, count: int) -> Latents:
    """Latents for `count` images; a conditional generator gets the labels of the real ones."""
    latents = generators.latents(count, "fid", client)
    return Latents(latents.content, latents.style, labels if generators.classes else None)


def frechet(
    real: Tensor, fake: Tensor, classifier: ReferenceClassifier | None, device: torch.device
) -> float:
    """Compute the FID of two sets of uint8 images [N, H, W, C] with torchmetrics.

    Args:
        real: real images.
        fake: generated images.
        classifier: whose features to use; None: Inception's.
        device: where to compute the features.
    """
    from torchmetrics.image.fid import FrechetInceptionDistance

    metric = FrechetInceptionDistance(feature=2048 if classifier is None else Features(classifier))
    metric.set_dtype(torch.float64)
    metric.to(device)
    for images, is_real in ((real, True), (fake, False)):
        for part in torch.split(images, BATCH):
            planes = part.permute(0, 3, 1, 2)
            planes = planes.expand(-1, 3, -1, -1) if classifier is None and planes.shape[1] == 1 else planes
            metric.update(planes.to(device), real=is_real)
    return float(metric.compute())


class Features(nn.Module):
    """Adapts the classifier's features to the interface of torchmetrics."""

    def __init__(self, classifier: ReferenceClassifier) -> None:
        super().__init__()
        self.classifier, self.num_features = classifier, classifier.network.features

    def forward(self, planes: Tensor) -> Tensor:
        return self.classifier.features(planes.to(torch.uint8).permute(0, 2, 3, 1))


def describe_features(classifier: ReferenceClassifier | None) -> str:
    """Describe the features that a distance was measured in; None stands for Inception."""
    if classifier is None:
        return "Inception v3, pool layer (2048 numbers)"
    return (
        f"classifier trained on the data set ({classifier.network.features} numbers, "
        f"{100 * classifier.accuracy:.1f} % accurate on test images of the clients' domains)"
    )


def inception_available() -> bool:
    """Whether Inception's weights are installed, so that no download is needed."""
    weights = Path(torch.hub.get_dir()) / "checkpoints" / WEIGHTS
    return installed("torch_fidelity") and weights.is_file()
