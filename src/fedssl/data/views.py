"""Views: random crops, flips and colours of all images of a batch.

Every image has random parameters of its own, drawn on the CPU, where views are made too (`pixels.py`): they
are the same bits whatever the device, and whatever the number of threads. In distribution they are what
torchvision's transforms make of one image after another.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedssl.data.images import ImageSet
from fedssl.data.options import ViewsConfig
from fedssl.errors import ConfigError, DataError, did_you_mean
from fedssl.threads import with_threads

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedssl.progress import Progress


@dataclass(frozen=True)
class View:
    """How one view is made. Steps happen in the order of the fields; what is 0 does not happen."""

    pad: float = 0.0  # black margin, as a share of the side, within which a crop of full size moves
    crop_min: float = 1.0  # area of the crop, as a share of the image's; 1: no crop
    crop_max: float = 1.0
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width / height of the crop
    flip: float = 0.0  # chance of a horizontal flip
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)  # brightness, contrast, saturation, hue
    jitter_p: float = 0.8  # chance that an image is jittered at all
    grey: float = 0.0  # chance of greyscale
    grey_first: bool = False  # greyscale comes before jitter
    blur: float = 0.0  # chance of a Gaussian blur
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    solarize: float = 0.0  # chance that pixels from 0.5 on are inverted


def distortion(strength: float) -> tuple[float, float, float, float]:
    """Colour jitter of a strength, as SimCLR defines it (appendix A)."""
    return 0.8 * strength, 0.8 * strength, 0.8 * strength, min(0.2 * strength, 0.5)


def recipe(name: str, side: int = 32) -> tuple[View, ...]:
    """The views of a published recipe, for images of so many pixels a side.

    simclr      Chen et al. 2020, appendix A; below 64 pixels as they do for CIFAR (appendix B.9):
                half the colour distortion and no blur
    moco-v1     He et al. 2020, section 3.3; greyscale comes first in their code
    byol        Grill et al. 2020, table 6: the second view is rarely blurred and sometimes solarized
    mae         He et al. 2022, appendix A.1: crops and flips
    supervised  crops of the image with a margin of an eighth (4 pixels of 32), and flips
    plain       nothing
    """
    small = side < 64
    simclr = View(crop_min=0.08, flip=0.5, jitter=distortion(0.5 if small else 1.0), grey=0.2)
    moco = View(crop_min=0.2, flip=0.5, jitter=(0.4, 0.4, 0.4, 0.4), jitter_p=1.0, grey=0.2, grey_first=True)
    byol = View(crop_min=0.08, flip=0.5, jitter=(0.4, 0.4, 0.2, 0.1), grey=0.2)
    recipes = {
        "simclr": (simclr if small else replace(simclr, blur=0.5),),
        "moco-v1": (moco,),
        "byol": (replace(byol, blur=1.0), replace(byol, blur=0.1, solarize=0.2)),
        "mae": (View(crop_min=0.2, flip=0.5),),
        "supervised": (View(pad=1 / 8, flip=0.5),),
        "plain": (View(),),
    }
    if name not in recipes:
        raise ConfigError(f"unknown recipe {name!r} of views: {did_you_mean(name, recipes)}")
    return recipes[name]


def override(view: View, config: ViewsConfig) -> View:
    """The view with what the config sets; `jitter` is a strength in the sense of `distortion`."""
    given = config.model_dump(exclude={"recipe"}, exclude_none=True)
    if "jitter" in given:
        given["jitter"] = distortion(given["jitter"])
    return replace(view, **given)


def fitting(config: ViewsConfig, images: ImageSet) -> ViewsConfig:
    """The config for these images: a flip that nobody asked for is left out where it makes another class."""
    if images.mirrored or config.flip is not None:
        return config
    return config.model_copy(update={"flip": 0.0})


def plain(images: Tensor, mean: float, std: float) -> Tensor:
    """Images as they are: uint8 NHWC to normalised float32 NCHW (channels last in memory)."""
    x = images.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.channels_last)
    return x.mul_(1 / (255 * std)).sub_(mean / std)


CPU = torch.device("cpu")


class Views:
    """Makes `num_views` views of a batch; if the recipe has fewer, they take turns."""

    def __init__(
        self,
        config: ViewsConfig,
        default_recipe: str,
        size: tuple[int, int],
        channels: int,
        mean: float,
        std: float,
        num_views: int = 2,
    ) -> None:
        if channels not in (1, 3):
            raise DataError(f"views of images with {channels} channels: set data.channels to 1 or 3")
        if num_views < 1:
            raise ConfigError(f"num_views={num_views}: at least one view is needed")
        chosen = recipe(default_recipe if config.recipe == "auto" else config.recipe, min(size))
        self.views = tuple(override(chosen[i % len(chosen)], config) for i in range(num_views))
        self.size, self.channels, self.mean, self.std = size, channels, mean, std
        self._settings: NDArray[np.void] | None = None

    def __call__(self, images: Tensor, rng: torch.Generator, device: torch.device = CPU) -> list[Tensor]:
        """Of uint8 images [B, H, W, C], normalised float32 [B, C, H, W] (channels last) for each view."""
        expected = (*self.size, self.channels)
        if images.dtype != torch.uint8 or images.shape[1:] != expected:
            raise DataError(
                f"views are made of uint8 images [B, {', '.join(map(str, expected))}],"
                f" not of {str(images.dtype).removeprefix('torch.')} {list(images.shape)}"
            )
        if set(self.views) == {View()}:
            return [plain(images.to(device), self.mean, self.std) for _ in self.views]
        results = self._made(images.contiguous(), rng).to(device, non_blocking=True)
        return list(results.permute(0, 1, 4, 2, 3))

    def get_ready(self, progress: Progress) -> None:
        """On a machine's first run views are compiled, which takes some seconds and is better said."""
        progress(0, 1, "compiling views")
        self(torch.zeros(1, *self.size, self.channels, dtype=torch.uint8), torch.Generator())
        progress(1, 1, "compiling views")

    def _made(self, images: Tensor, rng: torch.Generator) -> Tensor:
        """All views [V, B, H, W, C] of images on the CPU."""
        from fedssl.data import pixels  # brings Numba, which whoever makes no views need not wait for

        if self._settings is None:
            self._settings = settings_of(self.views, self.size, pixels.SETTINGS)
        uniform = torch.rand(len(self.views), len(images), pixels.UNIFORMS, generator=rng)
        results = torch.empty(len(self.views), *images.shape)
        # Some of Numba's thread pools must not be entered twice at once; one sets PyTorch's threads at first.
        with _one_at_a_time, with_threads(0):
            threads = pixels.at_most(torch.get_num_threads())
            pixels.make(
                images.numpy(), self._settings, uniform.numpy(), self.mean, self.std, threads, results.numpy()
            )
        return results


_one_at_a_time = threading.Lock()


def settings_of(views: tuple[View, ...], size: tuple[int, int], form: Any) -> NDArray[np.void]:
    """Views as records that compiled code reads."""
    settings = np.zeros(len(views), form)
    for record, view in zip(settings, views, strict=True):
        record["pad"] = [round(view.pad * side) for side in size]
        record["crop"] = view.crop_min, view.crop_max
        for name in set(form.names) - {"pad", "crop"}:
            record[name] = getattr(view, name)
    return settings
