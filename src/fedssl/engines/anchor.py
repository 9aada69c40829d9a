"""The server's own update from trusted images, by which `aggregation.name=fltrust` judges uploads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedssl.aggregation.rule import Rule
from fedssl.data.parts import Parts
from fedssl.engines.memory import MemoryStore
from fedssl.engines.runner import ClientRunner
from fedssl.engines.tasks import Task
from fedssl.errors import ConfigError, RunError
from fedssl.state import ClientMemory, ServerState


class Anchor:
    """Trains an additional client, at the server, on the root set.

    Args:
        runner: the runner of the server's process, whose model it uses between clients.
    """

    def __init__(self, runner: ClientRunner) -> None:
        config, federation = runner.config, runner.federation
        here = config.engine.sees_clients
        images = federation.labeled if here else np.arange(len(federation.train))
        name = f"aggregation.name={config.aggregation.name}"
        if not len(images):
            where = "data.holdout=0.05 keeps images from clients" if here else "set data.name and data.root"
            raise ConfigError(f"{name} needs images at the server, its root set: {where}")
        if len(runner.first_server().states) > 1 or not config.engine.has_server:
            raise ConfigError(f"{name} needs one global model: method.name={config.method.name} has several")
        if config.train.lora and config.train.lora_mean == "product":
            raise ConfigError(f"{name} does not multiply factors: use train.lora_mean=freeze-a")
        self.client = federation.clients  # the number after those of the clients
        sizes = np.zeros(self.client + 1, dtype=np.int64)
        sizes[-1] = len(images)
        own = {  # the server does not simulate failures, and does not have to protect its own images
            "participation": config.participation.model_copy(update={"failure_rate": 0.0, "timeout": 0.0}),
            "privacy": config.privacy.model_copy(update={"mode": "none"}),
        }
        self.runner = ClientRunner(
            config.model_copy(update=own),
            replace(federation, parts=Parts(images, sizes), turns=()),
            runner.network,
            Forgetful(runner.memories.folder),
        )

    @classmethod
    def of(cls, runner: ClientRunner) -> Anchor | None:
        """The anchor of a run whose rule needs one."""
        return cls(runner) if runner.config.aggregation.needs_root else None

    def rule(self, server: ServerState, number: int) -> Rule:
        """The rule of a round, with the server's own update."""
        config = self.runner.config
        broadcast = config.method.broadcast(server, self.client, number)
        outcome = self.runner.run(Task(number, self.client, broadcast, threads=config.engine.threads))
        if outcome.upload is None:
            raise RunError(f"round {number}: the server cannot train on its root set: {outcome.failure}")
        return config.aggregation.anchored(outcome.upload.state)


class Forgetful(MemoryStore):
    """The server's client starts every round as a new one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, cache_mb=0)

    def save(self, client: int, round: int, memory: ClientMemory) -> None:
        pass
