"""A trained encoder with its preprocessing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedssl.data.cache import Shape
from fedssl.data.options import Window
from fedssl.engines.device import find_device
from fedssl.errors import RunError
from fedssl.models.describe import rebuild
from fedssl.rundir import RunDir
from fedssl.tensorfile import load_tensors


class Normalized(nn.Module):
    """A network that normalizes its inputs, pixels in [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.network((pixels - self.mean) / self.std)
        return features


@dataclass(frozen=True)
class Trained:
    """An encoder (or a classifier on top of one) in evaluation mode."""

    network: Normalized
    description: dict[str, Any]  # encoder.json
    device: torch.device

    @property
    def shape(self) -> Shape:
        """Height, width and channels of the images it was trained on."""
        given = self.description["input"]
        return given["size"][0], given["size"][1], given["channels"]

    @property
    def square(self) -> bool:
        """Whether images are cropped to their central square (data.resize=crop)."""
        return bool(self.description["input"].get("resize") == "crop")

    @property
    def window(self) -> Window:
        """The pixel values of black and white in training."""
        window: Window = self.description["input"].get("window", "auto")
        return window if isinstance(window, str) else (window[0], window[1])

    @property
    def features(self) -> int:
        width: int = self.description["features"]
        return width

    @torch.inference_mode()
    def __call__(self, images: NDArray[np.uint8]) -> Tensor:
        """Compute outputs [N, …] for uint8 images [N, H, W, C], float32 on the CPU."""
        pixels = torch.from_numpy(images).to(self.device).permute(0, 3, 1, 2).float().div_(255)
        output: Tensor = self.network(pixels.contiguous(memory_format=torch.channels_last))
        return output.float().cpu()


def load_trained(path: str | Path, device: str = "auto") -> Trained:
    """Load the encoder of a finished run."""
    directory = RunDir.open(path)
    if not (directory.path / "encoder.safetensors").exists():
        raise RunError(f"{directory.path} has no encoder yet: continue it with {directory.how_to_continue()}")
    description = directory.encoder_description()
    encoder = rebuild(description)
    encoder.load_state_dict(load_tensors(directory.path / "encoder.safetensors")[0])
    return ready(encoder, description, device)


def ready(network: nn.Module, description: dict[str, Any], device: str = "auto") -> Trained:
    given, place = description["input"], find_device(device)
    wrapped = Normalized(network, given["mean"], given["std"]).eval().requires_grad_(False)
    wrapped = wrapped.to(place).to(memory_format=torch.channels_last)
    return Trained(wrapped, description, place)
