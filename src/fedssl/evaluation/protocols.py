"""The protocols that probe an encoder on labeled images, or fine-tune it."""

from __future__ import annotations

from typing import Any

import torch

from fedssl.config import load
from fedssl.data import sets
from fedssl.data.views import Views
from fedssl.errors import ConfigError, DataError
from fedssl.evaluation.loaded import LoadedRun
from fedssl.evaluation.probes import Prober, entry
from fedssl.evaluation.protocol import Protocol
from fedssl.evaluation.scene_sets import near
from fedssl.evaluation.scores import Scores, mean_scores
from fedssl.evaluation.semi import fine_tune
from fedssl.evaluation.subset import subset


def _frozen(run: LoadedRun, protocol: str) -> dict[str, Any]:
    prober = run.prober()
    found = run.models.probe(prober, [protocol], run.server, run.memory_rounds, run.config.probe.clients)
    return found[0]


class KNN(Protocol):
    """Weighted nearest neighbors on the frozen encoder."""

    def evaluate(self, run: LoadedRun) -> dict[str, Any]:
        return _frozen(run, "knn")


class Linear(Protocol):
    """A linear classifier on the frozen encoder."""

    def evaluate(self, run: LoadedRun) -> dict[str, Any]:
        return _frozen(run, "linear")


class Transfer(Protocol):
    """A linear classifier on the frozen encoder, on another data set (data.name, data.root)."""

    def evaluate(self, run: LoadedRun) -> dict[str, Any]:
        if run.config.data == run.trained.data:
            raise ConfigError("transfer needs another data set: data.name=… (and data.root=…)")
        images = run.federation.train
        keys = {key: value for key, value in run.overrides.items() if key.startswith("data.")}
        if keys.get("data.root"):  # a bare name: next to the images of the run
            keys["data.root"] = str(near(str(keys["data.root"]), run.trained.data.root))
        other = load(None, keys | {"data.size": images.size[0], "data.channels": images.channels})
        train, test = sets.load(other.data, run.config.seed)
        prober = run.prober(train, test)
        found = run.models.probe(prober, ["linear"], run.server, run.memory_rounds, run.config.probe.clients)[
            0
        ]
        return {**found, "protocol": "transfer", "pretrained_on": images.name}


class Semi(Protocol):
    """Fine-tuning of the whole model with a new two-layer head on images held out of pre-training."""

    def evaluate(self, run: LoadedRun) -> dict[str, Any]:
        federation, options, data = run.federation, run.config.semi, run.config.data
        if len(federation.labeled) == 0:
            raise ConfigError(
                "semi needs labeled images that pre-training did not see: train with data.holdout=0.01"
            )
        labeled, test = federation.train.subset(federation.labeled), federation.test
        why_not = Prober.why_not(labeled, test)
        if why_not or test is None or labeled.y is None:
            raise DataError(f"cannot fine-tune: {why_not}")
        if options.labels:
            if options.labels > run.trained.data.holdout:
                raise ConfigError(
                    f"semi.labels={options.labels}: only {run.trained.data.holdout} was held out "
                    "(data.holdout)"
                )
            share = options.labels * len(federation.train) / len(labeled)
            labeled = labeled.subset(subset(labeled.y, share, run.config.seed))
        views = Views.of(labeled, run.config.views, "supervised", data.mean, data.std, num_views=1)

        def tuned(encoder: torch.nn.Module) -> Scores:
            return fine_tune(
                encoder,
                run.models.runner.features,
                labeled,
                test,
                hidden=options.hidden,
                epochs=options.epochs,
                batch_size=options.batch_size,
                lr=options.lr,
                augment=lambda images, rng: views(images, rng)[0],
                mean=data.mean,
                std=data.std,
                seed=run.config.seed,
                device=run.device,
            )

        encoders = run.models.encoders(run.server, run.memory_rounds, run.config.probe.clients)
        scores = [tuned(owned.module) for owned in encoders]
        prober = Prober(labeled, test, data, run.config.probe, run.device, run.config.seed)
        found = entry(
            "semi",
            run.models.describe_owner(len(scores)),
            prober,
            mean_scores(scores),
            tuned(run.models.untrained()),
        )
        return {**found, "labelled": len(labeled)}
