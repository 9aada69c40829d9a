"""Measurements of clients instead of training: statistics or probes of the received model."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from torch import nn

from fedssl.engines.recalibration import pooling
from fedssl.engines.tasks import Outcome, Task
from fedssl.methods.client import ClientFailure
from fedssl.rng import derive
from fedssl.state import Upload, restore

if TYPE_CHECKING:
    from fedssl.engines.runner import ClientRunner


def measurement(runner: ClientRunner, task: Task) -> Outcome:
    """Run the measurement that `task.measure` names."""
    if task.measure in ("monitor", "probes"):
        return _probes(runner, task)
    return _statistics(runner, task)


def one_encoder(runner: ClientRunner) -> bool:
    """Whether all clients use the same encoder, the server's."""
    method = runner.config.method
    return method.evaluates == "global" and not method.private_norm and not method.personalizes


def _statistics(runner: ClientRunner, task: Task) -> Outcome:
    """Statistics of the received encoder on this client's images."""
    model = task.broadcast.model
    restore(runner.model, {**runner.initial, **model})
    found = runner.measured(task.client, runner.model.part("encoder"), task.measure == "by-batch")
    state = {f"encoder.{name}": value for name, value in found.items()}
    state = {name: state[name] for name in runner.recalibrated}
    upload = Upload(task.client, state, len(runner.federation.parts[task.client]))
    upload = pooling(runner.config).on_client(
        {name: model[name] for name in state}, upload, frozenset(state), task.round
    )
    return Outcome(task.client, upload)


def _probes(runner: ClientRunner, task: Task) -> Outcome:
    """Probe the encoder that this client uses on its own labeled images; returns numbers, no tensors."""
    config, part = runner.config, runner.federation.parts[task.client]
    if not len(part):
        raise ClientFailure("has no images")
    encoder = copy.deepcopy(_used_encoder(runner, task))
    restore(runner.model, runner.initial)
    values = config.probe.at_site(
        encoder,
        runner.model.part("encoder") if task.measure == "probes" else None,
        runner.federation.train.subset(part),
        config.data,
        runner.device,
        derive(config.seed, task.client, "probes at the site"),
    )
    return Outcome(task.client, Upload(task.client, {}, len(part), values=values))


def _used_encoder(runner: ClientRunner, task: Task) -> nn.Module:
    """The encoder that a client uses after a run: the global one, or its own."""
    if not one_encoder(runner):
        return runner.config.method.personal_encoder(runner.receive(task))
    restore(runner.model, {**runner.initial, **task.broadcast.model})
    return runner.model.part("encoder")
