"""Evaluation where images have styles: one encoder for all styles, or each client's own for its style.

The two protocols of FedStyle's "Evaluations and Results", and how well its style features tell clients apart.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.data.images import ImageSet
from fedssl.errors import ConfigError, DataError
from fedssl.evaluation.features import extract
from fedssl.evaluation.loaded import LoadedRun
from fedssl.evaluation.probes import Prober, entry
from fedssl.evaluation.protocol import Protocol
from fedssl.evaluation.scores import Scores, mean_scores, score
from fedssl.evaluation.tuned import score_tuned
from fedssl.models.tuned import Tuned

PICTURED = 100  # images of a client whose style features are looked at


class Generalization(Protocol):
    """The global encoder, with a linear probe for each style on all its training images."""

    def evaluate(self, run: LoadedRun) -> dict[str, Any]:
        train, test = _labelled(run)
        if train.domain is None or test.domain is None:
            raise DataError(
                f"generalization needs the style of each image, and {train.name} has none: "
                "use --protocol linear"
            )
        names = {style: train.domains[style] for style in _numbers(train.domain)}
        probers = [run.prober(_of_style(train, style), _of_style(test, style)) for style in names]

        def scores(encoder: nn.Module) -> list[Scores]:
            return [_linear(prober, encoder) for prober in probers]

        trained = run.models.each(scores, run.server, run.memory_rounds, run.config.probe.clients)
        by_style = [mean_scores([each[place] for each in trained]) for place in range(len(probers))]
        untrained = scores(run.models.untrained())
        found = _entry(run, "generalization", run.models.whose(len(trained)), by_style, untrained)
        rows = [
            _row({"style": name, "images": prober.images()}, own, before)
            for name, prober, own, before in zip(names.values(), probers, by_style, untrained, strict=True)
        ]
        return {**found, "images": f"{train.name}: each style's own train and test", "styles": rows}


class Personal(Protocol):
    """Each client's own encoder, a linear probe on its own images, tested on its style's test images."""

    def evaluate(self, run: LoadedRun) -> dict[str, Any]:
        train, test = _labelled(run)
        scores, untrained, rows = [], [], []
        for client, part in enumerate(run.federation.parts):
            own, theirs = (
                _as_seen_by(client, run, images)
                for images in (train.subset(part), _style_of(train, test, part))
            )
            prober = run.prober(own, theirs)
            scores.append(_linear(prober, own_encoder(run, client)))
            untrained.append(_linear(prober, run.models.untrained()))
            about = {"client": client, "style": _style_name(train, part), "images": prober.images()}
            rows.append(_row(about, scores[-1], untrained[-1]))
        epochs = run.config.probe.local_epochs
        after = f" after {epochs:g} local epochs" if epochs else ""
        found = _entry(run, "personal", f"personal, mean of {len(rows)} clients{after}", scores, untrained)
        images = f"{train.name}: each client's own train, its style's test"
        return {**found, "images": images, "styles": _by_style(rows), "clients": rows}


class Style(Protocol):
    """How often the nearest style feature (FedStyle's h_s) is one of the same client."""

    def evaluate(self, run: LoadedRun) -> dict[str, Any]:
        found = nearest_is_same_client(style_features(run))
        untrained = nearest_is_same_client(style_features(run, untrained=True))
        train, clients = run.federation.train, run.federation.clients
        return {
            "protocol": "style",
            "model": "each client's own style encoder",
            "images": f"{train.name}: up to {PICTURED} train of each of {clients} clients",
            **found.to_dict(),
            "untrained": untrained.accuracy,
            "gain": found.accuracy - untrained.accuracy,
        }


# --- whose encoder, on which images -----------------------------------------------------------------


def own_encoder(run: LoadedRun, client: int) -> nn.Module:
    """A copy of a client's own encoder, which the client first trains for `probe.local_epochs`."""
    epochs = run.config.probe.local_epochs
    model = run.models.load_client(run.server, run.memory_rounds, client, local_epochs=epochs)
    return copy.deepcopy(run.config.method.personal_encoder(model))


def _labelled(run: LoadedRun) -> tuple[ImageSet, ImageSet]:
    train, test = run.federation.train, run.federation.test
    why_not = Prober.why_not(train, test)
    if why_not or test is None:
        raise DataError(f"cannot probe: {why_not}")
    return train, test


def _of_style(images: ImageSet, style: int) -> ImageSet:
    assert images.domain is not None
    own = images.subset((images.domain == style).nonzero().flatten())
    if not len(own):
        raise DataError(f"{images.name}: there are no test images of style {images.domains[style]}")
    return own


def _style_of(train: ImageSet, test: ImageSet, part: NDArray[np.int64]) -> ImageSet:
    """The test images of the styles that a client's images come from; all where there are no styles."""
    if train.domain is None or test.domain is None:
        return test
    own = np.isin(test.domain.numpy(), _numbers(train.domain[torch.from_numpy(part)]))
    return test.subset(np.flatnonzero(own))


def _style_name(train: ImageSet, part: NDArray[np.int64]) -> str:
    if train.domain is None:
        return ""
    return "+".join(train.domains[style] for style in _numbers(train.domain[torch.from_numpy(part)]))


def _numbers(values: Tensor) -> list[int]:
    """Which there are, in order."""
    return [int(number) for number in np.unique(values.numpy())]


def _as_seen_by(client: int, run: LoadedRun, images: ImageSet) -> ImageSet:
    """Images with the client's own shift."""
    return replace(images, x=run.trained.shift.apply(images.x, client, run.federation.clients))


# --- numbers ----------------------------------------------------------------------------------------


def _linear(prober: Prober, encoder: nn.Module) -> Scores:
    """The linear probe; where there is one class only, it is what every image is taken for."""
    assert prober.train.y is not None
    assert prober.test.y is not None
    if len(_numbers(prober.train.y)) == 1:
        return score(prober.train.y[:1].expand(len(prober.test)), prober.test.y, prober.test.classes)
    if isinstance(encoder, Tuned):
        return score_tuned(prober, encoder)
    return prober.run_all(encoder, ["linear"])["linear"]


def _entry(
    run: LoadedRun, protocol: str, model: str, scores: Sequence[Scores], untrained: Sequence[Scores]
) -> dict[str, Any]:
    train, test = _labelled(run)
    whole = Prober(train, test, run.config.data, run.config.probe, run.device, run.config.seed)
    return entry(protocol, model, whole, mean_scores(scores), mean_scores(untrained))


def _row(about: dict[str, Any], scores: Scores, untrained: Scores) -> dict[str, Any]:
    return {**about, "accuracy": scores.accuracy, "untrained": untrained.accuracy}


def _by_style(clients: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the clients of each style."""
    rows = []
    for name in dict.fromkeys(row["style"] for row in clients if row["style"]):
        own = [row for row in clients if row["style"] == name]
        means = {key: sum(row[key] for row in own) / len(own) for key in ("accuracy", "untrained")}
        rows.append({"style": name, "clients": len(own), **means})
    return rows


# --- style features -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class StyleFeatures:
    """h_s of some images of every client, one client after the other."""

    features: Tensor  # [N, D]
    clients: Tensor  # [N]
    styles: Tensor | None  # [N], where the images have styles
    style_names: tuple[str, ...]


def style_features(run: LoadedRun, *, untrained: bool = False) -> StyleFeatures:
    """Of up to 100 images of each client, evenly spread over its own, from its own style encoder."""
    model, train, data = run.models.runner.model, run.federation.train, run.config.data
    if not model.has("style"):
        raise ConfigError(f"method {run.trained.method.name} has no style features: only fedstyle has")
    found, clients, chosen = [], [], []
    for client, part in enumerate(run.federation.parts):
        picked = part[np.linspace(0, len(part) - 1, min(PICTURED, len(part))).astype(int)]
        images = _as_seen_by(client, run, train.subset(picked))
        if untrained:
            run.models.untrained()
        else:
            run.models.load_client(run.server, run.memory_rounds, client)
        encoder = model.part("style.encoder")
        found.append(extract(encoder, images, mean=data.mean, std=data.std, device=run.device))
        clients.append(torch.full((len(images),), client))
        chosen.append(torch.from_numpy(picked))
    styles = None if train.domain is None else train.domain[torch.cat(chosen)]
    return StyleFeatures(torch.cat(found), torch.cat(clients), styles, train.domains)


def nearest_is_same_client(seen: StyleFeatures) -> Scores:
    """Whether the nearest other feature, by cosine, is of the same client."""
    unit = F.normalize(seen.features.double(), dim=1)
    nearest = (unit @ unit.T).fill_diagonal_(-2.0).argmax(dim=1)
    names = tuple(f"client {client}" for client in range(int(seen.clients.max()) + 1))
    return score(seen.clients[nearest], seen.clients, names)
