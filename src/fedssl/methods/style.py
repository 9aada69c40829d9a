"""Extraction of a client's style by contrasting its images with their outlines (FedStyle, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.data.federation import ClientImages
from fedssl.data.view_recipes import build_recipe
from fedssl.data.views import CPU, Views, plain
from fedssl.models.heads import build_projector
from fedssl.models.model import Model, Part
from fedssl.models.options import ModelConfig
from fedssl.normalization import by_channel
from fedssl.objectives.losses import full_precision
from fedssl.objectives.objective import Objective

LUMA = (0.299, 0.587, 0.114)  # ITU-R 601


def sobel(images: Tensor) -> Tensor:
    """Outlines of uint8 images [B, H, W, C] as float32 [B, C, H, W] in [0, 1], equal in every channel.

    The magnitude of the two Sobel gradients of the gray image, divided by its maximum over the image. Borders
    are replicated, so that the border itself does not count as an outline.
    """
    channels = images.shape[3]
    weights = torch.tensor(LUMA if channels == 3 else (1 / channels,) * channels, device=images.device)
    gray = F.pad(images.float() @ weights, (1, 1, 1, 1), mode="replicate")
    # Each gradient is a difference along one side of what is smoothed by (1, 2, 1) along the other.
    down, along = gray[:, :-2] + gray[:, 2:], gray[:, :, :-2] + gray[:, :, 2:]
    down, along = down.add_(gray[:, 1:-1], alpha=2), along.add_(gray[:, :, 1:-1], alpha=2)
    magnitude = torch.hypot(down[:, :, 2:] - down[:, :, :-2], along[:, 2:] - along[:, :-2])
    largest = magnitude.amax(dim=(1, 2), keepdim=True)
    # Gradients of 8-bit pixels are never below 0.1: smaller values are rounding on a plain surface.
    scaled = torch.where(largest > 0.05, magnitude / largest.clamp_min(0.05), 0.0)
    return scaled[:, None].expand(-1, channels, -1, -1).contiguous(memory_format=torch.channels_last)


class StyleViews(Views):
    """Two "views" of an image: the image without augmentation, and its outlines."""

    def __init__(self, like: Views) -> None:
        super().__init__(build_recipe("plain"), like.size, like.channels, like.mean, like.std)

    def __call__(
        self, images: Tensor, rng: torch.Generator | None = None, device: torch.device = CPU
    ) -> list[Tensor]:
        images = images.to(device)
        outlines = sobel(images)
        outlines.sub_(by_channel(self.mean, outlines)).div_(by_channel(self.std, outlines))
        return [plain(images, self.mean, self.std), outlines]


class StyleContrast(Objective):
    """Contrasts a client's images with their outlines; each group attracts its members (FedStyle, Eq. 2)."""

    temperature: float = Field(0.07, gt=0, description="divides cosine similarities")

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        return Model(encoder=Part(encoder), projector=Part(build_projector(features, config)))

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        z = model.part("projector")(model.part("encoder")(torch.cat(list(views))))
        return style_info_nce(z, self.temperature)


@full_precision
def style_info_nce(z: Tensor, temperature: float) -> Tensor:
    """Supervised InfoNCE of 2B rows, the first half of one style and the second of another (Eq. 2).

    −log p of each of a row's B−1 positives among all other rows, averaged over positives and rows. (The paper
    prints 2B−1 for the number of positives, and sums over rows.)
    """
    rows = len(z)
    z = F.normalize(z, dim=1)
    log_p = (z @ z.T / temperature).fill_diagonal_(float("-inf")).log_softmax(dim=1)
    style = torch.arange(rows) * 2 // rows
    positive = (style[:, None] == style).fill_diagonal_(False).nonzero().to(z.device)  # found without a GPU
    return -log_p[positive[:, 0], positive[:, 1]].mean()


FEATURES = 64  # images per batch, with as many outlines; larger batches exceed the processor's cache


@torch.no_grad()
def style_features(
    encoder: nn.Module, images: ClientImages, views: StyleViews, device: torch.device
) -> Tensor:
    """h_s and h_sobel [N, 2, D] of all images of a client, from its style encoder in evaluation mode."""
    encoder.eval()
    chunks = []
    for positions in torch.split(torch.arange(len(images)), FEATURES):
        pixels, _ = images.batch(positions)
        both = views(pixels, device=device)
        chunks.append(encoder(torch.cat(both)).float().view(2, len(positions), -1).transpose(0, 1))
    return torch.cat(chunks)


def build_generator(features: int, hidden: int) -> nn.Sequential:
    """Build G, which maps concatenated content and style features to content features."""
    return nn.Sequential(nn.Linear(2 * features, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, features))


class ConcatenatedFeatures(nn.Module):
    """Concatenated features of two encoders."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat((self.first(images), self.second(images)), dim=1)


class Stylize(nn.Module):
    """Maps [h_c, h_s] to h_c + G([h_c, h_s]) (FedStyle, Eq. 4)."""

    def __init__(self, generator: nn.Module) -> None:
        super().__init__()
        self.generator = generator

    def forward(self, both: Tensor) -> Tensor:
        stylized: Tensor = both[:, : both.shape[1] // 2] + self.generator(both)
        return stylized
