"""Evaluation on images with styles: of one encoder on all styles, or of personal ones on their own.

The two protocols of FedStyle's "Evaluations and Results".
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

from fedssl.data.images import ImageSet
from fedssl.errors import DataError
from fedssl.evaluation.clients import (
    apply_shift_of,
    labeled,
    linear_scores,
    numbers,
    of_same_style,
    parts_of,
    style_name,
)
from fedssl.evaluation.loaded import LoadedRun
from fedssl.evaluation.probes import Prober, entry
from fedssl.evaluation.protocol import Protocol
from fedssl.evaluation.scores import Scores, mean_scores


class Generalization(Protocol):
    """A linear probe of the global encoder for each style, on all training images of the style."""

    def evaluate(self, run: LoadedRun) -> dict[str, Any]:
        train, test = labeled(run)
        if train.domain is None or test.domain is None:
            raise DataError(
                f"generalization needs the style of each image, which {train.name} does not have: "
                "use --protocol linear"
            )
        names = {style: train.domains[style] for style in numbers(train.domain)}
        probers = [run.prober(_of_style(train, style), _of_style(test, style)) for style in names]

        def scores(encoder: nn.Module) -> list[Scores]:
            return [linear_scores(prober, encoder) for prober in probers]

        trained = run.models.each(scores, run.server, run.memory_rounds, run.config.probe.clients)
        by_style = [mean_scores([each[place] for each in trained]) for place in range(len(probers))]
        untrained = scores(run.models.untrained())
        found = _entry(run, "generalization", run.models.describe_owner(len(trained)), by_style, untrained)
        rows = [
            _row({"style": name, "images": prober.images()}, own, before)
            for name, prober, own, before in zip(names.values(), probers, by_style, untrained, strict=True)
        ]
        return {**found, "images": f"{train.name}: each style's own train and test", "styles": rows}


class Personal(Protocol):
    """A linear probe of each personal encoder on the client's images, tested on its style's test images."""

    def evaluate(self, run: LoadedRun) -> dict[str, Any]:
        train, test = labeled(run)
        scores, untrained, rows = [], [], []
        for client, part in enumerate(parts_of(run)):
            own, theirs = (
                apply_shift_of(client, run, images)
                for images in (train.subset(part), of_same_style(train, test, part))
            )
            prober = run.prober(own, theirs)
            scores.append(linear_scores(prober, own_encoder(run, client)))
            untrained.append(linear_scores(prober, run.models.untrained()))
            about = {"client": client, "style": style_name(train, part), "images": prober.images()}
            rows.append(_row(about, scores[-1], untrained[-1]))
        epochs = run.config.probe.local_epochs
        after = f" after {epochs:g} local epochs" if epochs else ""
        found = _entry(run, "personal", f"personal, mean of {len(rows)} clients{after}", scores, untrained)
        images = f"{train.name}: each client's own train, its style's test"
        return {**found, "images": images, "styles": _by_style(rows), "clients": rows}


# --- encoders and images ----------------------------------------------------------------------------


def own_encoder(run: LoadedRun, client: int) -> nn.Module:
    """A copy of a client's personal encoder, after `probe.local_epochs` of local training."""
    epochs = run.config.probe.local_epochs
    model = run.models.load_client(run.server, run.memory_rounds, client, local_epochs=epochs)
    return copy.deepcopy(run.config.method.personal_encoder(model))


def _of_style(images: ImageSet, style: int) -> ImageSet:
    assert images.domain is not None
    own = images.subset((images.domain == style).nonzero().flatten())
    if not len(own):
        raise DataError(f"{images.name} has no test images of style {images.domains[style]}")
    return own


# --- numbers ----------------------------------------------------------------------------------------


def _entry(
    run: LoadedRun, protocol: str, model: str, scores: Sequence[Scores], untrained: Sequence[Scores]
) -> dict[str, Any]:
    train, test = labeled(run)
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
