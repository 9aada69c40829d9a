"""Views: random crops, flips and colors for all images of a batch.

Every image has its own random parameters. They are drawn on the CPU, where the views are computed too
(`pixels.py`), so the bits do not depend on the device or the number of threads. The views have the same
distribution as those of torchvision's transforms applied image by image.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedssl.data.images import MOST_CHANNELS, ImageSet
from fedssl.data.view_recipes import Augmentation, CompiledViews, View, ViewRecipe
from fedssl.errors import ConfigError, DataError
from fedssl.normalization import Levels, by_channel, per_channel
from fedssl.threads import with_threads
from fedssl.transfer import copy_to

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedssl.progress import Progress


def plain(images: Tensor, mean: Levels, std: Levels) -> Tensor:
    """Normalize images without augmentation: uint8 NHWC to float32 NCHW (channels last in memory)."""
    x = images.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.channels_last)
    middle, spread = by_channel(mean, x), by_channel(std, x)
    return x.mul_(1 / (255 * spread)).sub_(middle / spread)


def shrink(images: Tensor, share: float) -> Tensor:
    """Resize images [B, C, H, W] to this share of their side, antialiased."""
    if share == 1:
        return images
    size = [max(1, round(share * side)) for side in images.shape[2:]]
    return F.interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)


CPU = torch.device("cpu")


class Views:
    """Makes `num_views` views of a batch.

    Args:
        recipe: the augmentations; `auto` must be resolved first (see `Views.of`).
        size: height and width of the images.
        channels: 1 to 16; steps that concern colors apply to 3 only.
        mean, std: pixels in [0, 1] are normalized by them; a number, or one for each channel.
        num_views: views of each image.
    """

    def __init__(
        self,
        recipe: ViewRecipe,
        size: tuple[int, int],
        channels: int,
        mean: Levels,
        std: Levels,
        num_views: int = 2,
    ) -> None:
        if not 1 <= channels <= MOST_CHANNELS:
            raise DataError(f"views of images with {channels} channels: 1 to {MOST_CHANNELS} are possible")
        if num_views < 1:
            raise ConfigError(f"num_views={num_views}: at least one view is needed")
        self.recipe, self.num_views = recipe, num_views
        self.views = recipe.settings(min(size), num_views) if isinstance(recipe, CompiledViews) else ()
        self.size, self.channels, self.mean, self.std = size, channels, mean, std
        means, deviations = np.array(per_channel(mean, channels)), np.array(per_channel(std, channels))
        self._scale = (1 / deviations).astype(np.float32)
        self._shift = (-means / deviations).astype(np.float32)
        self._settings: NDArray[np.void] | None = None

    @staticmethod
    def of(
        images: ImageSet,
        recipe: ViewRecipe,
        default: str | type[ViewRecipe],
        mean: Levels,
        std: Levels,
        num_views: int = 2,
    ) -> Views:
        """Build the views of a set of images.

        Images that must not be mirrored (digits) are flipped only if `views.flip` is set.

        Args:
            images: the images.
            recipe: the configured recipe.
            default: the recipe that `auto` stands for.
            mean: of the normalization.
            std: of the normalization.
            num_views: views of each image.
        """
        resolved = recipe.resolve(default)
        fitting = resolved if images.mirrored else resolved.without_flips()
        return Views(fitting, images.size, images.channels, mean, std, num_views)

    def __call__(self, images: Tensor, rng: torch.Generator, device: torch.device = CPU) -> list[Tensor]:
        """Make views of uint8 images [B, H, W, C]: normalized float32 [B, C, H, W] (channels last) each."""
        expected = (*self.size, self.channels)
        if images.dtype != torch.uint8 or images.shape[1:] != expected:
            raise DataError(
                f"views are made of uint8 images [B, {', '.join(map(str, expected))}],"
                f" not of {str(images.dtype).removeprefix('torch.')} {list(images.shape)}"
            )
        if isinstance(self.recipe, Augmentation):
            return [copy_to(self._augment(self.recipe, images, rng), device) for _ in range(self.num_views)]
        if set(self.views) == {View()}:
            return [plain(copy_to(images, device), self.mean, self.std) for _ in self.views]
        results = self._compute(images.contiguous(), rng)
        if all(view.side == 1 for view in self.views):
            return list(copy_to(results, device).permute(0, 1, 4, 2, 3))
        made = results.permute(0, 1, 4, 2, 3)
        smaller = (shrink(x, view.side) for x, view in zip(made, self.views, strict=True))
        return [copy_to(x, device) for x in smaller]

    def get_ready(self, progress: Progress) -> None:
        """Make a first view, since compiling the code on a machine's first run takes some seconds."""
        progress(0, 1, "compiling views")
        self(torch.zeros(1, *self.size, self.channels, dtype=torch.uint8), torch.Generator())
        progress(1, 1, "compiling views")

    def _augment(self, recipe: Augmentation, images: Tensor, rng: torch.Generator) -> Tensor:
        """One view by a user's class, checked and normalized."""
        view = recipe.augment(images, rng)
        expected = [len(images), self.channels, *self.size]
        if not isinstance(view, Tensor) or not view.is_floating_point() or list(view.shape) != expected:
            found = f"{view.dtype} {list(view.shape)}" if isinstance(view, Tensor) else type(view).__name__
            raise DataError(
                f"views.recipe={recipe.recipe}: augment must return floating-point images {expected}, "
                f"not {found}"
            )
        normalized = (view.float() - by_channel(self.mean, view)) / by_channel(self.std, view)
        return normalized.contiguous(memory_format=torch.channels_last)

    def _compute(self, images: Tensor, rng: torch.Generator) -> Tensor:
        """All views [V, B, H, W, C] of images on the CPU."""
        from fedssl.data import pixels  # imports Numba, which is slow and only needed here

        if self._settings is None:
            self._settings = settings_of(self.views, self.size, pixels.SETTINGS)
        uniform = torch.rand(len(self.views), len(images), pixels.UNIFORMS, generator=rng)
        results = torch.empty(len(self.views), *images.shape)
        # Some of Numba's thread pools are not reentrant, and one changes PyTorch's threads at first.
        with _one_at_a_time, with_threads(0):
            threads = pixels.limit_threads(torch.get_num_threads())
            pixels.make(
                images.numpy(),
                self._settings,
                uniform.numpy(),
                self._scale,
                self._shift,
                threads,
                results.numpy(),
            )
        return results


_one_at_a_time = threading.Lock()


def settings_of(views: tuple[View, ...], size: tuple[int, int], form: Any) -> NDArray[np.void]:
    """Convert views to records for the compiled code."""
    settings = np.zeros(len(views), form)
    for record, view in zip(settings, views, strict=True):
        record["pad"] = [round(view.pad * side) for side in size]
        record["crop"] = view.crop_min, view.crop_max
        for name in set(form.names) - {"pad", "crop"}:
            record[name] = getattr(view, name)
    return settings
