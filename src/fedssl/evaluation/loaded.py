"""A finished run, loaded from its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from fedssl.config import Config, load
from fedssl.data.federation import Federation
from fedssl.data.images import ImageSet
from fedssl.engines.live import ServerRun
from fedssl.engines.recalibration import recalibrates
from fedssl.errors import DataError, RunError
from fedssl.evaluation.models import Models
from fedssl.evaluation.probes import Prober, make_prober
from fedssl.rundir import RunDir
from fedssl.state import ServerState

T = TypeVar("T")


@dataclass(frozen=True)
class LoadedRun:
    """A run with its images, its models and its last server state.

    Attributes:
        directory: the run's folder.
        config: the run's config with the overrides of this evaluation.
        live: the run in its trained state.
        models: the encoders of the run.
        overrides: config keys of this evaluation.
    """

    directory: RunDir
    config: Config
    live: ServerRun
    models: Models
    overrides: Mapping[str, Any]

    @property
    def trained(self) -> Config:
        """The config that the run was trained with."""
        return self.live.config

    @property
    def federation(self) -> Federation:
        return self.live.federation

    @property
    def server(self) -> ServerState:
        return self.live.server

    @property
    def memory_rounds(self) -> dict[int, int]:
        return self.live.memory_rounds

    @property
    def device(self) -> torch.device:
        return self.live.device

    def measure(self, measure: Callable[[nn.Module], T]) -> list[T]:
        """Measure the trained encoders: the global one, or those of up to `probe.clients` clients."""
        return self.models.each(measure, self.server, self.memory_rounds, self.config.probe.clients)

    def prober(self, train: ImageSet | None = None, test: ImageSet | None = None) -> Prober:
        """Probes that train on `train` and test on `test`; by default the run's own images.

        Raises:
            DataError: there are no labels to probe with.
        """
        if train is None:
            train, test = self.federation.train, self.federation.test
        config = self.config
        prober = make_prober(train, test, config.data, config.probe, self.device, config.seed)
        if prober is None:
            raise DataError(f"cannot probe: {Prober.why_not(train, test)}")
        return prober


def load_run(directory: RunDir, overrides: Mapping[str, Any]) -> LoadedRun:
    """Load a run at its last checkpoint.

    Args:
        directory: the run's folder.
        overrides: config keys for the evaluation.

    Raises:
        RunError: the run has no checkpoint yet.
    """
    trained = directory.config()
    config = load(trained.to_dict(), overrides)
    torch.set_num_threads(config.engine.all_threads or torch.get_num_threads())
    live = ServerRun(trained, directory.checkpoints)
    if live.round == 0:
        raise RunError(
            f"{directory.path} has no checkpoint yet: continue it with {directory.how_to_continue()}"
        )
    recalibration = live.recalibration if recalibrates(config) else None
    return LoadedRun(directory, config, live, Models(live.runner, recalibration), overrides)
