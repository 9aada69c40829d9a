"""The protocols of `fedssl eval`: each takes a finished run and gives one entry with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fedssl.config import Config, load
from fedssl.data import sets
from fedssl.data.federation import Federation
from fedssl.data.images import ImageSet
from fedssl.data.views import Views, fitting
from fedssl.engines.checkpoint import Checkpoints
from fedssl.engines.runner import ClientRunner, build_network
from fedssl.errors import ConfigError, DataError, RunError, did_you_mean
from fedssl.evaluation.detection import detection
from fedssl.evaluation.models import Models
from fedssl.evaluation.probes import Prober, entry, make_prober
from fedssl.evaluation.scores import Scores, mean_scores
from fedssl.evaluation.semi import fine_tune
from fedssl.evaluation.styles import generalization, personal, style
from fedssl.evaluation.subset import subset
from fedssl.rundir import RunDir
from fedssl.state import ServerState
from fedssl.threads import with_threads


@dataclass(frozen=True)
class Finished:
    """A run brought back to life: its images, its models, its last server state."""

    config: Config  # with the overrides of this evaluation
    trained: Config  # as it was trained
    federation: Federation
    models: Models
    server: ServerState
    memory_rounds: dict[int, int]
    overrides: Mapping[str, Any]

    @property
    def device(self) -> torch.device:
        return self.models.runner.device

    def prober(self, train: ImageSet, test: ImageSet | None) -> Prober:
        config = self.config
        prober = make_prober(train, test, config.data, config.probe, self.device, config.seed)
        if prober is None:
            raise DataError(f"cannot probe: {Prober.why_not(train, test)}")
        return prober


def evaluate(directory: RunDir, protocol: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Run one protocol; `overrides` are config keys of data, probe or semi, and what the method allows."""
    if protocol not in PROTOCOLS:
        raise ConfigError(f"unknown protocol {protocol!r}: {did_you_mean(protocol, PROTOCOLS)}")
    of_method = [f"method.{key}" for key in directory.config().method.when_evaluated]
    for key in overrides:
        if key.split(".")[0] not in ("data", "probe", "semi", "detection", "device") and key not in of_method:
            known = ", ".join(["data.*", "probe.*", "semi.*", "detection.*", "device", *of_method])
            raise ConfigError(f"{key} has no meaning in an evaluation: only {known}")
    with with_threads(0):
        found = {**PROTOCOLS[protocol](bring_back(directory, overrides)), "overrides": dict(overrides)}
    directory.append_evaluation(found)
    return found


def bring_back(directory: RunDir, overrides: Mapping[str, Any]) -> Finished:
    """Rebuild a run from its directory."""
    trained = directory.config()
    config = load(trained.to_dict(), overrides)
    torch.set_num_threads(config.engine.all_threads or torch.get_num_threads())
    federation = trained.engine.federation(trained)
    images = federation.train
    network = build_network(trained, images.size, images.channels, len(images.classes))
    memories = trained.engine.memories(directory.memories)
    latest = Checkpoints(directory.checkpoints, 0, memories).latest()
    if latest is None:
        raise RunError(f"{directory.path} has no checkpoint yet: `fedssl resume {directory.path}`")
    round, server = latest
    runner = ClientRunner(trained, federation, network, memories)
    return Finished(config, trained, federation, Models(runner), server, memories.rounds(round), overrides)


def _frozen(run: Finished, protocol: str) -> dict[str, Any]:
    prober = run.prober(run.federation.train, run.federation.test)
    found = run.models.probe(prober, [protocol], run.server, run.memory_rounds, run.config.probe.clients)
    return found[0]


def knn(run: Finished) -> dict[str, Any]:
    """Weighted nearest neighbours on the frozen encoder."""
    return _frozen(run, "knn")


def linear(run: Finished) -> dict[str, Any]:
    """A linear classifier on the frozen encoder."""
    return _frozen(run, "linear")


def transfer(run: Finished) -> dict[str, Any]:
    """A linear classifier on the frozen encoder, on another data set (data.name, data.root)."""
    if run.config.data == run.trained.data:
        raise ConfigError("transfer needs another data set: data.name=… (and data.root=…)")
    images = run.federation.train
    fitted = {"data.size": images.size[0], "data.channels": images.channels}
    other = load(
        None, {key: value for key, value in run.overrides.items() if key.startswith("data.")} | fitted
    )
    train, test = sets.load(other.data, run.config.seed)
    prober = run.prober(train, test)
    found = run.models.probe(prober, ["linear"], run.server, run.memory_rounds, run.config.probe.clients)[0]
    return {**found, "protocol": "transfer", "pretrained_on": images.name}


def semi(run: Finished) -> dict[str, Any]:
    """The whole model and a fresh two-layer head, fine-tuned on labelled images held out of pre-training."""
    federation, options, data = run.federation, run.config.semi, run.config.data
    if len(federation.labelled) == 0:
        raise ConfigError(
            "semi needs labelled images that pre-training did not see: train with data.holdout=0.01"
        )
    labelled, test = federation.train.subset(federation.labelled), federation.test
    why_not = Prober.why_not(labelled, test)
    if why_not or test is None or labelled.y is None:
        raise DataError(f"cannot fine-tune: {why_not}")
    if options.labels:
        if options.labels > run.trained.data.holdout:
            raise ConfigError(
                f"semi.labels={options.labels}: only {run.trained.data.holdout} was held out (data.holdout)"
            )
        share = options.labels * len(federation.train) / len(labelled)
        labelled = labelled.subset(subset(labelled.y, share, run.config.seed))
    views = Views(
        fitting(run.config.views, labelled),
        "supervised",
        labelled.size,
        labelled.channels,
        data.mean,
        data.std,
        num_views=1,
    )

    def tuned(encoder: torch.nn.Module) -> Scores:
        return fine_tune(
            encoder,
            run.models.runner.features,
            labelled,
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
    scores = [tuned(encoder.module) for encoder in encoders]
    prober = Prober(labelled, test, data, run.config.probe, run.device, run.config.seed)
    found = entry(
        "semi", run.models.whose(len(scores)), prober, mean_scores(scores), tuned(run.models.untrained())
    )
    return {**found, "labelled": len(labelled)}


PROTOCOLS: dict[str, Callable[[Finished], dict[str, Any]]] = {
    "knn": knn,
    "linear": linear,
    "semi": semi,
    "transfer": transfer,
    "generalization": generalization,
    "personal": personal,
    "style": style,
    "detection": detection,
}
