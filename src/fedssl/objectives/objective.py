"""The base class of objectives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from fedssl.data.view_recipes import ViewRecipe
from fedssl.models.encoders import Encoder, build_encoder
from fedssl.models.model import Model
from fedssl.models.options import ModelConfig
from fedssl.options import Choice

if TYPE_CHECKING:
    from fedssl.config import Config


class Objective(Choice):
    """A loss on views of images, and the parts of the model that it needs.

    An objective has no state: all tensors are in the `Model` it builds, so that an engine can
    swap one client's tensors for another's in place.
    """

    # The views that `views.recipe=auto` makes: a name in `fedssl list views`, or a class.
    views: ClassVar[str | type[ViewRecipe]] = "simclr"
    num_views: ClassVar[int] = 2
    needs_labels: ClassVar[bool] = False
    # Why the loss is not a mean over independent images (as privacy.mode=example needs); empty: it is.
    couples: ClassVar[str] = 'does not declare that its loss is a mean over images (couples = "")'
    own_encoder: ClassVar[str] = ""  # what it trains instead of the encoder that `model.encoder` names

    def encoder(self, config: Config, size: tuple[int, int], channels: int) -> Encoder:
        """Build the encoder to train: by default the one that `model.encoder` names."""
        return build_encoder(config.model, size, channels)

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        """Build the model to train.

        Args:
            encoder: the encoder.
            features: the length of its features.
            config: the options of the heads.
            classes: the number of classes of the data; 0 without labels.
        """
        raise TypeError(f"{type(self).__name__} does not define build")

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        """Compute the scalar to minimize.

        Args:
            model: the model that `build` returned, with the method's parts.
            views: `num_views` batches of images [B, C, H, W].
            labels: their labels [B], if there are any.
            rng: on the CPU, for random numbers of the loss.
        """
        raise TypeError(f"{type(self).__name__} does not define loss")

    def before_round(self, model: Model) -> None:
        """Called before the first step of a client's local training; by default nothing."""

    def after_step(self, model: Model) -> None:
        """Called after every optimizer step, for example to update a target; by default nothing."""

    def trained(self, model: Model) -> list[nn.Parameter]:
        """Parameters that the optimizer updates: those of the objective's parts that require gradients."""
        added = tuple(f"{part}." for part in model.added)
        named = model.named_parameters()
        return [value for name, value in named if value.requires_grad and not name.startswith(added)]
