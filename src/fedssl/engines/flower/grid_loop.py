"""The round loop with the clients that are connected to a Flower grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedssl.config import Config
from fedssl.data.federation import Federation
from fedssl.engines.anchor import Anchor
from fedssl.engines.flower.server import GridClients
from fedssl.engines.loop import RoundLoop, draw_clients
from fedssl.engines.recalibration import Recalibration, recalibrates, stored_at
from fedssl.engines.round_report import RoundReport
from fedssl.engines.runner import ClientRunner
from fedssl.engines.tasks import Task
from fedssl.state import ServerState

AWAY, BUSY = "not connected", "has not answered in an earlier round"


class GridLoop(RoundLoop):
    """Runs rounds with the clients that are connected."""

    engine: GridClients

    def __init__(
        self, config: Config, runner: ClientRunner, federation: Federation, clients: GridClients
    ) -> None:
        memories, guard = runner.memories, runner.guard()
        super().__init__(config, runner.model, federation, clients, memories, guard, Anchor.of(runner))
        self._first = True

    def select(self, number: int) -> tuple[list[int], list[int]]:
        """Draw the clients of a round: as on one machine if all are connected, else among those that are."""
        ids = self.engine.gather(self._first)
        self._first = False
        config = self.config
        sampled = self.guard.sample(number)
        if sampled is not None:
            return [client for client in sampled if client in ids], []
        selected, spares = draw_clients(config.participation, len(ids), config.seed, number)
        return [ids[place] for place in selected], [ids[place] for place in spares]

    def absent(self) -> dict[int, str]:
        engine = self.engine
        away = set(range(engine.clients)) - engine.connected.keys() if engine.at_sites else set[int]()
        return {client: BUSY if client in engine.busy else AWAY for client in away}

    def run(
        self, server: ServerState, start: int, after_round: Callable[[RoundReport, ServerState], bool]
    ) -> ServerState:
        server = super().run(server, start, after_round)
        if self.engine.at_sites:
            self._deliver(self._recalibrated(server))
        return server

    def _recalibrated(self, server: ServerState) -> ServerState:
        """The state with recalibrated statistics, if configured; sites and probes use them."""
        config, runner = self.config, self.engine.runner
        if not recalibrates(config) or config.method.evaluates != "global" or not server.model:
            return server
        self.engine.gather(enough=1)
        file = stored_at(runner.memories.folder.parent)
        found = Recalibration(runner, self.engine.run, file).of(server.model)
        return replace(server, model={**server.model, **found})

    def _deliver(self, server: ServerState) -> None:
        number, tell = self.config.rounds + 1, self.engine.nodes.tell
        tasks = [
            Task(
                number,
                client,
                self.config.method.broadcast(server, client, number),
                self.memory_rounds.get(client, 0),
            )
            for client in self.engine.gather(enough=0)  # the rounds are over
        ]
        for outcome in self.engine.deliver(tasks):
            if outcome.failure:
                tell(f"client {outcome.client} did not get the result: {outcome.failure}")
