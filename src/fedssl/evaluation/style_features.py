"""Style features (FedStyle's h_s): whether they separate clients, and styles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.data.images import ImageSet
from fedssl.errors import ConfigError
from fedssl.evaluation.clients import apply_shift_of, parts_of
from fedssl.evaluation.features import extract
from fedssl.evaluation.loaded import LoadedRun
from fedssl.evaluation.protocol import Protocol
from fedssl.evaluation.scores import Scores, mean_scores, score

IMAGES = 100  # per client, at most


class Style(Protocol):
    """How often the nearest style feature is of the same client, or of the same style.

    Every client has its own style encoder, so features of different clients may differ even if their images
    do not. `encoder=one` uses the style encoder of one client for all images.
    """

    encoder: Literal["own", "one"] = Field(
        "own",
        description="own: encode each client's images by its own style encoder, and compare clients; one: "
        "encode all images by one client's style encoder, and compare styles",
    )

    def evaluate(self, run: LoadedRun) -> dict[str, Any]:
        train, clients = run.federation.train, run.federation.clients
        found, untrained, more = self._own(run) if self.encoder == "own" else self._one(run)
        return {
            "protocol": "style",
            "model": "each client's own style encoder"
            if self.encoder == "own"
            else f"one client's style encoder, mean of {more.pop('encoders')} clients",
            "images": f"{train.name}: up to {IMAGES} train of each of {clients} clients",
            **found.to_dict(),
            "untrained": untrained.accuracy,
            "gain": found.accuracy - untrained.accuracy,
            **more,
        }

    def _own(self, run: LoadedRun) -> tuple[Scores, Scores, dict[str, Any]]:
        return (
            nearest_is_same_client(style_features(run)),
            nearest_is_same_client(style_features(run, untrained=True)),
            {},
        )

    def _one(self, run: LoadedRun) -> tuple[Scores, Scores, dict[str, Any]]:
        pictured = Pictured.of(run)

        def scores(encoder: nn.Module) -> Scores:
            return nearest_is_same_style(pictured.seen_by(run, lambda _: encoder))

        count = min(run.config.probe.clients, run.federation.clients)
        chosen = np.unique(np.linspace(0, run.federation.clients - 1, count).astype(int))
        found = [scores(style_encoder(run, int(client))) for client in chosen]
        content = run.models.exported(run.server, run.memory_rounds).module
        more = {"content": scores(content).accuracy, "encoders": len(found)}
        return mean_scores(found), scores(style_encoder(run, None)), more


@dataclass(frozen=True)
class StyleFeatures:
    """Style features h_s of images of every client, ordered by client."""

    features: Tensor  # [N, D]
    clients: Tensor  # [N]
    styles: Tensor | None  # [N], where the images have styles
    style_names: tuple[str, ...]


@dataclass(frozen=True)
class Pictured:
    """Up to 100 evenly spaced images of each client, with the client's shift."""

    images: list[ImageSet]  # by client
    clients: Tensor  # [N]
    styles: Tensor | None
    style_names: tuple[str, ...]

    @classmethod
    def of(cls, run: LoadedRun) -> Pictured:
        train, images, chosen = run.federation.train, [], []
        for client, part in enumerate(parts_of(run)):
            picked = part[np.linspace(0, len(part) - 1, min(IMAGES, len(part))).astype(int)]
            images.append(apply_shift_of(client, run, train.subset(picked)))
            chosen.append(torch.from_numpy(picked))
        clients = torch.cat([torch.full((len(own),), client) for client, own in enumerate(images)])
        styles, names = None, train.domains
        if train.domain is not None:
            styles = train.domain[torch.cat(chosen)]
        elif run.trained.shift.name != "none":  # a client's shift is its style
            styles, names = clients, tuple(f"client {client}" for client in range(len(images)))
        return cls(images, clients, styles, names)

    def seen_by(self, run: LoadedRun, encoder_of: Callable[[int], nn.Module]) -> StyleFeatures:
        """Encode each client's images by the encoder that `encoder_of` returns for it."""

        def features() -> Iterator[Tensor]:
            for client, own in enumerate(self.images):
                data = run.config.data
                yield extract(encoder_of(client), own, mean=data.mean, std=data.std, device=run.device)

        return StyleFeatures(torch.cat(list(features())), self.clients, self.styles, self.style_names)


def style_features(run: LoadedRun, *, untrained: bool = False) -> StyleFeatures:
    """Style features of up to 100 images of each client, from its own style encoder."""
    return Pictured.of(run).seen_by(run, lambda client: style_encoder(run, None if untrained else client))


def style_encoder(run: LoadedRun, client: int | None) -> nn.Module:
    """A client's style encoder, valid until the next one is loaded; None: the initial one.

    Raises:
        ConfigError: the run's method has no style features.
    """
    model = run.models.runner.model
    if not model.has("style"):
        raise ConfigError(f"method {run.trained.method.name} has no style features: use method.name=fedstyle")
    if client is None:
        run.models.untrained()
    else:
        run.models.load_client(run.server, run.memory_rounds, client)
    return model.part("style.encoder")


def nearest_is_same_client(seen: StyleFeatures) -> Scores:
    """Score whether the nearest other feature, by cosine similarity, is of the same client."""
    names = tuple(f"client {client}" for client in range(int(seen.clients.max()) + 1))
    return score(seen.clients[nearest(seen.features)], seen.clients, names)


def nearest_is_same_style(seen: StyleFeatures) -> Scores:
    """Score whether the nearest other feature, by cosine similarity, is of the same style."""
    if seen.styles is None:
        raise ConfigError("protocol.encoder=one needs images with styles, or a shift")
    return score(seen.styles[nearest(seen.features)], seen.styles, seen.style_names)


def nearest(features: Tensor) -> Tensor:
    """For each row, the index of the other row with the largest cosine similarity."""
    unit = F.normalize(features.double(), dim=1)
    return (unit @ unit.T).fill_diagonal_(-2.0).argmax(dim=1)
