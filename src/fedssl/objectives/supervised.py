"""Cross-entropy on labels: the supervised baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.errors import ConfigError, DataError
from fedssl.models.model import Model, Part
from fedssl.models.options import ModelConfig
from fedssl.objectives.losses import full_precision
from fedssl.objectives.objective import Objective


class Supervised(Objective):
    """Supervised: cross-entropy of a linear classifier, trained jointly with the encoder."""

    couples: ClassVar[str] = ""

    views: ClassVar[str] = "supervised"
    num_views: ClassVar[int] = 1
    needs_labels: ClassVar[bool] = True

    def build(self, encoder: nn.Module, features: int, config: ModelConfig, classes: int = 0) -> Model:
        if classes < 2:
            raise ConfigError(
                f"objective.name=supervised needs labels of at least 2 classes, but the data have {classes}; "
                "choose a labeled data set, or another objective"
            )
        return Model(encoder=Part(encoder), classifier=Part(nn.Linear(features, classes)))

    def loss(
        self, model: Model, views: Sequence[Tensor], labels: Tensor | None, rng: torch.Generator
    ) -> Tensor:
        if labels is None:
            raise DataError("objective.name=supervised needs labels, but these images have none")
        return cross_entropy(model.part("classifier")(model.part("encoder")(views[0])), labels)


@full_precision
def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean of −log p(label)."""
    return F.cross_entropy(logits, labels)
