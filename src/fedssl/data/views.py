"""Views: random crops, flips and colours of a whole batch at once.

All images of a batch go through each step together, each with its own random parameters, and
every parameter is drawn on the CPU, so that views are the same on every device. In distribution
they are what torchvision's transforms make of one image after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedssl.config import ViewsConfig
from fedssl.data import colour, geometry
from fedssl.data.images import ImageSet
from fedssl.errors import ConfigError, DataError, did_you_mean


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


class Views:
    """Makes `num_views` views of a batch; if the recipe has fewer, they take turns."""

    # Pixels of one colour in one view that a thread works on at a time (CPU only): enough for calls to cost
    # little beside the work, and few enough to stay in a cache.
    PIXELS = 1 << 17

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
        self.shift, self.scale = torch.tensor(-mean / std), 1 / std
        self.sampler = Sampler(self.views, size)

    def __call__(self, images: Tensor, rng: torch.Generator) -> list[Tensor]:
        """Of uint8 images [B, H, W, C], normalised float32 [B, C, H, W] (channels last) for each view."""
        expected = (*self.size, self.channels)
        if images.dtype != torch.uint8 or images.shape[1:] != expected:
            raise DataError(
                f"views are made of uint8 images [B, {', '.join(map(str, expected))}],"
                f" not of {str(images.dtype).removeprefix('torch.')} {list(images.shape)}"
            )
        if set(self.views) == {View()}:
            return [plain(images, self.mean, self.std) for _ in self.views]
        results = torch.empty(len(self.views), *images.shape, device=images.device)
        with torch.inference_mode():  # nothing takes a gradient here, and calls cost less where none can
            self._fill(results, images, rng)
        return list(results.permute(0, 1, 4, 2, 3))

    def _fill(self, results: Tensor, images: Tensor, rng: torch.Generator) -> None:
        """All views [V, B, H, W, C] of the images, part by part."""
        draw = self.sampler(len(images), rng, images.device)
        step = len(images) or 1
        if images.device.type == "cpu":
            step = max(1, self.PIXELS * torch.get_num_threads() // (self.size[0] * self.size[1]))
        for start in range(0, len(images), step):
            part = slice(start, start + step)
            out = results[:, part]
            make(self.views, images[part].to(torch.float32), draw.part(part), out)
            torch.add(self.shift, out, alpha=self.scale, out=out)


@dataclass(frozen=True)
class Draw:
    """The random parameters of V views of every image of a batch. Masks stay on the CPU."""

    rows: geometry.Taps  # [V, B, H, 2]: of which rows of the image, 255 is white, those of the view are made
    columns: geometry.Taps  # [V, B, W, 2]
    order: list[list[int]]  # of the four steps of the jitter, for each view
    factors: Tensor  # [4, V, B]: of brightness, contrast, saturation and hue
    grey: Tensor  # [V, B], bool
    sigma: Tensor  # [V, B], of the blur
    solarize: Tensor  # [V, B], bool

    def part(self, images: slice) -> Draw:
        """The parameters of some images of the batch."""
        return Draw(
            rows=geometry.Taps(*(each[:, images] for each in self.rows)),
            columns=geometry.Taps(*(each[:, images] for each in self.columns)),
            order=self.order,
            factors=self.factors[:, :, images],
            grey=self.grey[:, images],
            sigma=self.sigma[:, images],
            solarize=self.solarize[:, images],
        )


SHARP = 1e-3  # a standard deviation, in pixels, that leaves every pixel exactly as it is


class Sampler:
    """Draws the parameters of all views of a batch together: two calls for random numbers."""

    def __init__(self, views: Sequence[View], size: tuple[int, int]) -> None:
        self.views, self.size = len(views), size
        self.crops = geometry.Crops(size, [(v.crop_min, v.crop_max) for v in views], [v.ratio for v in views])
        margin = torch.tensor([[round(v.pad * side) for v in views] for side in size], dtype=torch.float32)
        self.margin = margin[..., None]
        chances = [(v.flip, v.jitter_p, v.grey, v.blur, v.solarize) for v in views]
        self.chances = torch.tensor(chances).T[..., None]
        strength = torch.tensor([v.jitter for v in views]).T[..., None]
        self.unchanged = torch.tensor((1.0, 1.0, 1.0, 0.0))[:, None, None]
        low, high = self.unchanged - strength, self.unchanged + strength
        low[:3].clamp_min_(0)
        sigma = torch.tensor([v.blur_sigma for v in views]).T[:, None, :, None]
        # Ranges of what is drawn uniformly: the four factors of the jitter, and sigma.
        self.low = torch.cat((low, sigma[0]))
        self.span = torch.cat((high, sigma[1])).sub_(self.low)

    def __call__(self, count: int, rng: torch.Generator, device: torch.device) -> Draw:
        sizes = (self.crops.uniforms, len(self.margin), len(self.chances), len(self.low))
        uniform = torch.rand(sum(sizes), self.views, count, generator=rng)
        crop, shift, chance, strength = uniform.split_with_sizes(sizes)
        # One order for the batch: over batches, every image meets every order equally often.
        order = torch.rand(self.views, 4, generator=rng).argsort(1).tolist()
        flip, jittered, grey, blur, solarize = chance < self.chances
        strength = strength * self.span + self.low
        corners, sides = self.crops(crop).chunk(2)
        shift = (shift * (2 * self.margin + 1)).floor_().minimum(2 * self.margin).sub_(self.margin)
        rows, columns = (
            geometry.resized(start, length, mirrored, side)
            for start, length, mirrored, side in zip(
                corners + shift, sides, (torch.zeros_like(flip), flip), self.size, strict=True
            )
        )
        return Draw(
            rows=_on(device, geometry.Taps(rows.which, rows.weight.mul_(1 / 255))),
            columns=_on(device, columns),
            order=order,
            factors=torch.where(jittered, strength[:4], self.unchanged).to(device),
            grey=grey,
            sigma=torch.where(blur, strength[4], SHARP).to(device),
            solarize=solarize,
        )


def _on(device: torch.device, taps: geometry.Taps) -> geometry.Taps:
    return geometry.Taps(*(part.to(device) for part in taps))


JITTER = (colour.brightness_, colour.contrast_, colour.saturation_, colour.hue_)


def make(views: Sequence[View], images: Tensor, draw: Draw, out: Tensor) -> None:
    """All views of images [N, H, W, C] in [0, 255], into `out` [V, N, H, W, C] in [0, 1]."""
    x = geometry.sample(images, draw.rows, draw.columns)
    for index, view in enumerate(views):
        recolour_(x[index], view, draw, index)
    blurred = any(view.blur for view in views)
    out.copy_(geometry.blur(x, draw.sigma) if blurred else x.transpose(2, 4))
    for view, result, solarize in zip(views, out, draw.solarize, strict=True):
        if view.solarize:
            _some(result, solarize, colour.solarize_)


def recolour_(x: Tensor, view: View, draw: Draw, index: int) -> None:
    """Jitter and greyscale of view number `index`, [N, C, W, H]."""
    if view.grey and view.grey_first:
        _some(x, draw.grey[index], colour.greyscale_)
    for step in draw.order[index]:
        if view.jitter[step]:
            JITTER[step](x, draw.factors[step, index])
    if view.grey and not view.grey_first:
        _some(x, draw.grey[index], colour.greyscale_)


def _some(x: Tensor, chosen: Tensor, step: Callable[[Tensor], Tensor]) -> None:
    """Do `step` to the chosen [N] images only."""
    which = chosen.nonzero().squeeze(1).to(x.device)
    if len(which):
        x.index_copy_(0, which, step(x.index_select(0, which)))
