"""The round loop: sample, broadcast, collect, aggregate. The same for every engine with a server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedssl.config import Config, ParticipationConfig
from fedssl.engines.check import problem_with
from fedssl.engines.memory import MemoryStore
from fedssl.engines.tasks import Outcome, Task
from fedssl.errors import RunError
from fedssl.methods.method import ENCODER, Aggregate, ServerTools
from fedssl.models.model import Model
from fedssl.rng import numpy_rng
from fedssl.state import ServerState


class Clients(Protocol):
    """Where clients run: in this process, in workers, or at sites."""

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """Outcomes in the order of the tasks, each as soon as it can be had."""

    def close(self) -> None:
        """Let go of processes, connections and files."""


@dataclass
class RoundReport:
    """One line of metrics.jsonl in the making."""

    round: int
    outcomes: list[Outcome] = field(default_factory=list)  # without the uploads' tensors
    seconds: float = 0.0

    @property
    def views(self) -> int:
        return sum(outcome.views for outcome in self.outcomes)

    def line(self) -> dict[str, Any]:
        """Round, clients with their numbers, failures by name, means over clients weighted by images."""
        done = [outcome for outcome in self.outcomes if outcome.upload is not None]
        clients, images = [], sum(outcome.upload.num_samples for outcome in done if outcome.upload)
        means: dict[str, float] = {}
        for outcome in done:
            assert outcome.upload is not None
            upload, numbers = outcome.upload, {"loss": outcome.upload.loss, **outcome.upload.values}
            clients.append(
                {"client": upload.client, "images": upload.num_samples, **numbers, "seconds": outcome.seconds}
            )
            for name in ("loss", "divergence", "layer_angle"):
                if name in numbers:
                    means[name] = means.get(name, 0.0) + numbers[name] * upload.num_samples / images
        failed = [{"client": o.client, "reason": o.failure} for o in self.outcomes if o.failure]
        return {
            "round": self.round,
            **means,
            "views": self.views,
            "seconds": self.seconds,
            "clients": clients,
            "failed": failed,
        }


class RoundLoop:
    """Runs rounds from a server state; what surrounds it (files, probes, display) is told of each."""

    def __init__(
        self, config: Config, model: Model, clients: int, engine: Clients, memories: MemoryStore
    ) -> None:
        self.config, self.engine, self.memories, self.clients = config, engine, memories, clients
        shared = set(config.method.shared(model))
        self.tools = ServerTools(
            rule=config.aggregation,
            optimizer=config.server,
            statistics=model.statistics() & shared,
            parameters=frozenset(model.parameters_under(ENCODER)) & shared,
        )
        self.memory_rounds: dict[int, int] = {}

    def run(
        self, server: ServerState, start: int, told: Callable[[RoundReport, ServerState], None]
    ) -> ServerState:
        """Rounds start+1 … rounds."""
        for number in range(start + 1, self.config.rounds + 1):
            server, report = self.round(server, number)
            told(report, server)
        return server

    def round(self, server: ServerState, number: int) -> tuple[ServerState, RoundReport]:
        began, method, report = time.monotonic(), self.config.method, RoundReport(number)
        selected = sample_clients(self.config.participation, self.clients, self.config.seed, number)
        tasks = [
            Task(number, client, method.broadcast(server, client, number), self.memory_rounds.get(client, 0))
            for client in selected
        ]
        aggregate, folded = method.aggregate(server, number, self.tools), 0
        for outcome in self.engine.run(tasks):
            folded += self._fold(outcome, number, server, aggregate)
            report.outcomes.append(outcome)
        if folded < self.config.participation.min_clients:
            raise RunError(_too_few(number, folded, self.config.participation.min_clients, report))
        server = aggregate.finish()
        report.seconds = time.monotonic() - began
        return server, report

    def _fold(self, outcome: Outcome, number: int, server: ServerState, aggregate: Aggregate) -> bool:
        """Fold one upload in, if it is good; its tensors are let go either way."""
        if outcome.upload is not None:
            outcome.failure = problem_with(outcome.upload, server.model)
            if not outcome.failure:
                outcome.upload.values |= aggregate.add(outcome.upload)
                outcome.upload.state = {}
                if outcome.remembers:
                    self.memory_rounds[outcome.client] = number
                return True
            outcome.upload = None
            if outcome.remembers:
                self.memories.discard(outcome.client, number)
        return False


def sample_clients(participation: ParticipationConfig, clients: int, seed: int, round: int) -> list[int]:
    """Ids of the clients of a round, sorted; seeded by the round."""
    asked = participation.per_round
    count = (
        min(asked, clients) if isinstance(asked, int) else max(1, round_half_up(min(asked, 1.0) * clients))
    )
    drawn = numpy_rng(seed, round, "participation").choice(clients, size=count, replace=False)
    return sorted(int(client) for client in drawn)


def round_half_up(value: float) -> int:
    return int(value + 0.5)


def _too_few(number: int, folded: int, needed: int, report: RoundReport) -> str:
    reasons = [
        f"client {outcome.client}: {outcome.failure}" for outcome in report.outcomes if outcome.failure
    ]
    shown = "; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more" if len(reasons) > 3 else "")
    return f"round {number}: {folded} uploads, and participation.min_clients is {needed} ({shown})"
