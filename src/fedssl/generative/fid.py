"""The Fréchet distance between what a client has and what its generator draws (Heusel et al. 2017)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedssl.extras import installed
from fedssl.generative.judge import Judge, find_judge
from fedssl.generative.sampling import BATCH, Studio
from fedssl.generative.use import Use
from fedssl.objectives.generative.losses import Latents

WEIGHTS = "weights-inception-2015-12-05-6726825d.pth"


class FID(Use):
    """FID of each client: its own training images against as many from its generator."""

    count: int = Field(10_000, ge=2, description="images of each kind, at most as many as a client has")
    features: Literal["auto", "inception", "classifier"] = Field(
        "auto",
        description="Inception's pool features (needs torch-fidelity and its weights), or those of a "
        "classifier trained on the data set; auto: Inception's where they are at hand",
    )

    def do(self, studio: Studio, folder: Path) -> dict[str, Any]:
        inception = self.features == "inception" or (self.features == "auto" and inception_at_hand())
        judge = None if inception else find_judge(studio)
        distances, counts = [], []
        for client in range(studio.clients):
            real, labels = studio.train_images(client, self.count)
            fake = studio.draw(client, alike(studio, client, labels, len(real)))
            distances.append(frechet(real, fake, judge, studio.device))
            counts.append(len(real))
        return {
            "features": described(judge),
            "images": counts,
            "clients": distances,
            "mean": sum(distances) / len(distances),
        }


def alike(studio: Studio, client: int, labels: Tensor | None, count: int) -> Latents:
    """Latents for as many images; a conditional generator draws the labels of the real ones."""
    latents = studio.latents(count, "fid", client)
    return Latents(latents.content, latents.style, labels if studio.classes else None)


def frechet(real: Tensor, fake: Tensor, judge: Judge | None, device: torch.device) -> float:
    """The distance between two sets of uint8 images [N, H, W, C], by torchmetrics."""
    from torchmetrics.image.fid import FrechetInceptionDistance

    metric = FrechetInceptionDistance(feature=2048 if judge is None else Features(judge))
    metric.set_dtype(torch.float64)
    metric.to(device)
    for images, is_real in ((real, True), (fake, False)):
        for part in torch.split(images, BATCH):
            planes = part.permute(0, 3, 1, 2)
            planes = planes.expand(-1, 3, -1, -1) if judge is None and planes.shape[1] == 1 else planes
            metric.update(planes.to(device), real=is_real)
    return float(metric.compute())


class Features(nn.Module):
    """The classifier's features in the shape that torchmetrics wants."""

    def __init__(self, judge: Judge) -> None:
        super().__init__()
        self.judge, self.num_features = judge, judge.network.features

    def forward(self, planes: Tensor) -> Tensor:
        return self.judge.features(planes.to(torch.uint8).permute(0, 2, 3, 1))


def described(judge: Judge | None) -> str:
    """Whose features a distance was measured in."""
    if judge is None:
        return "Inception v3, pool layer (2048 numbers)"
    return (
        f"classifier trained on the data set ({judge.network.features} numbers, "
        f"{100 * judge.accuracy:.1f} % right on test images with the clients' looks)"
    )


def inception_at_hand() -> bool:
    """Whether Inception can be used without a download."""
    weights = Path(torch.hub.get_dir()) / "checkpoints" / WEIGHTS
    return installed("torch_fidelity") and weights.is_file()
