"""View recipes: the augmentations that make the views of a batch.

`views.recipe` names one of the published recipes below, or a class of the user's (`./file.py:Class`):

- a subclass of `Augmentation` makes views itself, with PyTorch;
- a subclass of `CompiledViews` combines the built-in steps (crop, flip, color, blur), which are fast.

The fields of a recipe are config keys: `views.flip=0.2`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from fedssl.data import VIEWS
from fedssl.errors import ConfigError
from fedssl.options import Options, build, choose


@dataclass(frozen=True)
class View:
    """How one view is made. Steps happen in the order of the fields; a step that is 0 is skipped."""

    pad: float = 0.0  # black margin, as a share of the side, within which a crop of full size moves
    crop_min: float = 1.0  # area of the crop, as a share of the image's; 1: no crop
    crop_max: float = 1.0
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width / height of the crop
    flip: float = 0.0  # probability of a horizontal flip
    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)  # brightness, contrast, saturation, hue
    jitter_p: float = 0.8  # probability of color jitter
    grey: float = 0.0  # probability of grayscale
    grey_first: bool = False  # grayscale comes before jitter
    blur: float = 0.0  # probability of a Gaussian blur
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    solarize: float = 0.0  # probability of inverting pixels above 0.5
    side: float = 1.0  # side of the view, as a share of the image's


def distortion(strength: float) -> tuple[float, float, float, float]:
    """Color jitter of a strength, as SimCLR defines it (appendix A)."""
    return 0.8 * strength, 0.8 * strength, 0.8 * strength, min(0.2 * strength, 0.5)


class ViewRecipe(Options):
    """Base class of all recipes."""

    recipe: str = Field(
        "auto", description="augmentations (see `fedssl list views`); auto: the objective's own"
    )

    def resolve(self, default: str | type[ViewRecipe]) -> ViewRecipe:
        """The recipe to use if the objective's recipe is `default`."""
        return self

    def without_flips(self) -> ViewRecipe:
        """The recipe for images that must not be mirrored, such as digits."""
        return self


class Augmentation(ViewRecipe):
    """Base class of user-defined augmentations. Override `augment`; fields are config keys `views.KEY`.

    Example:
        class Noise(Augmentation):
            strength: float = 0.1

            def augment(self, images, rng):
                x = images.permute(0, 3, 1, 2) / 255
                return x + self.strength * torch.randn(x.shape, generator=rng)
    """

    def augment(self, images: Tensor, rng: torch.Generator) -> Tensor:
        """Make one view of every image of a batch. It is called once for each view.

        Args:
            images: uint8 [B, H, W, C] on the CPU, not to be changed in place.
            rng: the only source of random numbers to use. It is seeded by (seed, round, client), so that runs
                are reproducible.

        Returns:
            A floating-point tensor [B, C, H, W] with pixels in [0, 1]; `data.mean` and `data.std` are applied
            to it afterwards.
        """
        raise TypeError(f"{type(self).__name__} does not define augment(images, rng)")


class CompiledViews(ViewRecipe):
    """Views from the built-in steps. Override `views`; the fields change single steps of it."""

    crop_min: float | None = Field(None, gt=0, le=1, description="smallest crop area; none: the recipe's")
    flip: float | None = Field(
        None, ge=0, le=1, description="probability of a horizontal flip; none: the recipe's, 0 for digits"
    )
    jitter: float | None = Field(None, ge=0, description="strength of color jitter; none: the recipe's")
    grey: float | None = Field(None, ge=0, le=1, description="probability of grayscale; none: the recipe's")
    blur: float | None = Field(None, ge=0, le=1, description="probability of blur; none: the recipe's")
    solarize: float | None = Field(
        None, ge=0, le=1, description="probability of solarization; none: the recipe's"
    )

    def views(self, side: int) -> tuple[View, ...]:
        """The views of the recipe for images of `side` pixels; repeated if an objective needs more."""
        raise TypeError(f"{type(self).__name__} does not define views(side)")

    def settings(self, side: int, num_views: int) -> tuple[View, ...]:
        """`num_views` views with the fields that are set; `jitter` is a strength as in `distortion`."""
        changes = _changes(self)
        if "jitter" in changes:
            changes["jitter"] = distortion(changes["jitter"])
        views = self.views(side)
        return tuple(replace(views[number % len(views)], **changes) for number in range(num_views))

    def without_flips(self) -> CompiledViews:
        return self if self.flip is not None else self.model_copy(update={"flip": 0.0})


def _changes(recipe: CompiledViews) -> dict[str, Any]:
    values = {name: getattr(recipe, name) for name in CompiledViews.model_fields if name != "recipe"}
    return {name: value for name, value in values.items() if value is not None}


def build_recipe(name: str, **options: Any) -> ViewRecipe:
    """Build a recipe by name: `build_recipe("simclr", flip=0.2)`."""
    recipe: ViewRecipe = choose(VIEWS, {"recipe": name, **options}, "views", key="recipe")
    return recipe


class Auto(CompiledViews):
    """The recipe that the objective was published with."""

    def resolve(self, default: str | type[ViewRecipe]) -> ViewRecipe:
        if isinstance(default, str):
            return build_recipe(default, **_changes(self))
        if not (isinstance(default, type) and issubclass(default, ViewRecipe)):
            raise ConfigError(f"an objective's views must be a recipe's name or class, not {default!r}")
        recipe: ViewRecipe = build(default, {"recipe": default.__name__, **_changes(self)}, "views")
        return recipe


class SimCLRViews(CompiledViews):
    """SimCLR (Chen et al. 2020, appendix A); below 64 pixels as for CIFAR (appendix B.9)."""

    def views(self, side: int) -> tuple[View, ...]:
        if side < 64:  # half the color distortion and no blur
            return (View(crop_min=0.08, flip=0.5, jitter=distortion(0.5), grey=0.2),)
        return (View(crop_min=0.08, flip=0.5, jitter=distortion(1.0), grey=0.2, blur=0.5),)


class MoCoV1Views(CompiledViews):
    """MoCo (He et al. 2020, section 3.3); grayscale comes first, as in their code."""

    def views(self, side: int) -> tuple[View, ...]:
        return (
            View(
                crop_min=0.2, flip=0.5, jitter=(0.4, 0.4, 0.4, 0.4), jitter_p=1.0, grey=0.2, grey_first=True
            ),
        )


class BYOLViews(CompiledViews):
    """BYOL (Grill et al. 2020, table 6): the second view is rarely blurred and sometimes solarized."""

    def views(self, side: int) -> tuple[View, ...]:
        view = View(crop_min=0.08, flip=0.5, jitter=(0.4, 0.4, 0.2, 0.1), grey=0.2)
        return replace(view, blur=1.0), replace(view, blur=0.1, solarize=0.2)


class DINOViews(CompiledViews):
    """DINO (Caron et al. 2021): two large crops as in BYOL, then small ones in smaller images."""

    crop_limit: float = Field(0.4, gt=0, lt=1, description="area up to which a crop is small, else large")
    local_min: float = Field(0.05, gt=0, lt=1, description="smallest area of a small crop")
    local_side: float = Field(0.5, gt=0, le=1, description="side of small crops, as a share of the image's")

    def settings(self, side: int, num_views: int) -> tuple[View, ...]:
        return super().settings(side, 2)[:num_views] + tuple(self._small(side) for _ in range(2, num_views))

    def views(self, side: int) -> tuple[View, ...]:
        view = View(crop_min=self.crop_limit, flip=0.5, jitter=(0.4, 0.4, 0.2, 0.1), grey=0.2)
        return replace(view, blur=1.0), replace(view, blur=0.1, solarize=0.2)

    def _small(self, side: int) -> View:
        """A small crop: the fields that are set apply, except for the area."""
        (view, _) = super().settings(side, 2)
        blur = 0.5 if self.blur is None else self.blur
        least = min(self.local_min, self.crop_limit)
        return replace(view, crop_min=least, crop_max=self.crop_limit, blur=blur, side=self.local_side)


class MAEViews(CompiledViews):
    """Masked autoencoders (He et al. 2022, appendix A.1): crops and flips."""

    def views(self, side: int) -> tuple[View, ...]:
        return (View(crop_min=0.2, flip=0.5),)


class SupervisedViews(CompiledViews):
    """Crops of the image with a margin of an eighth (4 pixels of 32), and flips."""

    def views(self, side: int) -> tuple[View, ...]:
        return (View(pad=1 / 8, flip=0.5),)


class PlainViews(CompiledViews):
    """No augmentation."""

    def views(self, side: int) -> tuple[View, ...]:
        return (View(),)
