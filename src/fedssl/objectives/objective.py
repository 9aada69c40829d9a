"""What every objective has in common."""

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

    An objective has no state: all tensors live in the `Model` it builds, so that an engine can
    swap one client's tensors for another's in place.
    """

    # The views that `views.recipe=auto` makes: a name in `fedssl list views`, or a class of one's own.
    views: ClassVar[str | type[ViewRecipe]] = "simclr"
    num_views: ClassVar[int] = 2
    needs_labels: ClassVar[bool] = False
    # Why its loss is not a mean over images, each by itself; empty: it is.
    couples: ClassVar[str] = 'does not say that its loss is a mean over images (couples = "")'
    own_encoder: ClassVar[str] = ""  # what it trains in place of the encoder that `model.encoder` names

    def encoder(self, config: Config, size: tuple[int, int], channels: int) -> Encoder:
        """The encoder to train: the one that `model.encoder` names, unless the objective brings its own."""
        return build_encoder(config.model, size, channels)

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        """The model to train: `encoder` and what the objective adds to it."""
        raise TypeError(f"{type(self).__name__} does not say how its model is built")

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        """The scalar to minimise on one batch; `rng` (CPU) is for what the loss draws itself."""
        raise TypeError(f"{type(self).__name__} has no loss")

    def before_round(self, model: Model) -> None:
        """What comes before the first step of a client's local training: nothing."""

    def after_step(self, model: Model) -> None:
        """What follows the optimizer's step: nothing, or a target's moving average."""

    def trained(self, model: Model) -> list[nn.Parameter]:
        """Parameters the optimizer updates: those of the objective's own parts that take gradients."""
        added = tuple(f"{part}." for part in model.added)
        named = model.named_parameters()
        return [value for name, value in named if value.requires_grad and not name.startswith(added)]
