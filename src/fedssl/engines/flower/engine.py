"""`engine.name=flower`: clients are nodes of a Flower grid, simulated on this machine or at real sites."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr

from fedssl.engines.engine import Engine
from fedssl.errors import ConfigError, RunError
from fedssl.extras import installed

if TYPE_CHECKING:
    from fedssl.config import Config
    from fedssl.data.federation import Federation
    from fedssl.engines.flower.nodes import Grid
    from fedssl.engines.loop import Clients, RoundLoop
    from fedssl.engines.memory import MemoryStore
    from fedssl.engines.runner import ClientRunner
    from fedssl.progress import Progress


def needs_flower() -> None:
    """Raise a ConfigError if Flower is not installed."""
    for package in ("flwr", "ray"):
        if not installed(package):
            raise ConfigError(f"{package} is not installed: pip install 'fedssl[flower]'")


class Flower(Engine):
    """Clients are Flower nodes: in Ray simulation, or at real sites (`fedssl server`, `fedssl client`)."""

    HOW: ClassVar[tuple[str, ...]] = (*Engine.HOW, "sites", "patience")

    name: str = Field("flower", description="engine (see `fedssl list engines`)")
    sites: tuple[str, ...] = Field(
        (), description="names of the sites, in the order of client ids; none: a simulation on this machine"
    )
    patience: float = Field(
        60.0,
        ge=0,
        le=1e08,
        description="seconds that the first round waits for sites that are not connected yet",
    )

    _grid: Any = PrivateAttr(None)
    _tell: Callable[[str], None] | None = PrivateAttr(None)

    def attach(self, grid: Grid, tell: Callable[[str], None]) -> None:
        """Use a grid that Flower has created, instead of a simulation."""
        self._grid, self._tell = grid, tell

    @property
    def sees_clients(self) -> bool:
        return not self.sites

    def describe_split(self, config: Config) -> str:
        return f"at {', '.join(self.sites)}" if self.sites else super().describe_split(config)

    def federation(self, config: Config, progress: Progress | None = None) -> Federation:
        """At a server of sites: one client per site, without images."""
        return (
            server_side(config, self.sites, progress) if self.sites else super().federation(config, progress)
        )

    def memories(self, folder: Path) -> MemoryStore:
        from fedssl.engines.flower.memories import RemoteMemories

        return RemoteMemories(folder, self.cache_mb) if self.sites else super().memories(folder)

    def default_wave(self, most: int) -> int:
        """One client: Ray gives every client the same cores, and sites have their own."""
        return 1

    def clients(self, config: Config, runner: ClientRunner, federation: Federation) -> Clients:
        needs_flower()
        from fedssl.engines.flower.server import GridClients
        from fedssl.engines.flower.simulation import Simulation

        tell = self._tell or logging.getLogger(__name__).warning
        if self._grid is not None:
            return GridClients(self._grid, config, runner, federation, tell)
        if self.sites:
            raise RunError(
                "the clients of this run are at their sites: continue it with the `fedssl server` command "
                "that started it"
            )
        return Simulation(config, runner, federation, tell)

    def loop(
        self, config: Config, runner: ClientRunner, federation: Federation, clients: Clients
    ) -> RoundLoop:
        from fedssl.engines.flower.grid_loop import GridLoop
        from fedssl.engines.flower.server import GridClients

        assert isinstance(clients, GridClients)
        return GridLoop(config, runner, federation, clients)


# The defaults of `fedssl server`.
SERVER_DEFAULTS: dict[str, Any] = {
    "engine.name": "flower",
    "data.name": "none",
    "checkpoint.every": 1,
    "participation.max_change": 10.0,
    "log.audit": True,
}


def server_side(config: Config, sites: Sequence[str], progress: Progress | None) -> Federation:
    """A federation without the clients' images; the server's own labeled images are for probes."""
    import numpy as np
    import torch

    from fedssl.data.federation import Federation
    from fedssl.data.images import ImageSet
    from fedssl.data.sets import load

    data = config.data
    if not data.size or not data.channels:
        raise ConfigError("sites need to agree on the shape of images: set data.size and data.channels")
    if config.objective.needs_labels:
        raise ConfigError(f"objective.name={config.objective.name} needs labels, but sites share no classes")
    if config.method.pools_data:
        raise ConfigError(f"method.name={config.method.name} has all images in one place, not at sites")
    nothing = np.empty(0, dtype=np.int64)
    parts = [nothing for _ in sites]
    if data.name == "none":
        empty = torch.empty((0, data.size, data.size, data.channels), dtype=torch.uint8)
        return Federation(ImageSet(empty, name="the server"), None, parts, nothing)
    train, test = load(data, config.seed, progress)
    return Federation(replace(train, name=f"the server's own {train.name}"), test, parts, nothing)


def own_threads(config: Config) -> Config:
    """The config with as many threads as this machine has cores, unless `engine.threads` is set."""
    threads = config.engine.threads or os.cpu_count() or 1
    return config.model_copy(update={"engine": config.engine.model_copy(update={"threads": threads})})
