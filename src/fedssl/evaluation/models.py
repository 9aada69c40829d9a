"""Whose encoder is it: the global one, or the clients' own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from fedssl.engines.runner import ClientRunner
from fedssl.engines.tasks import Task
from fedssl.evaluation.probes import Prober, entry
from fedssl.evaluation.scores import Scores, mean_scores
from fedssl.state import ServerState, restore


@dataclass(frozen=True)
class Whose:
    """An encoder, and whose it is."""

    module: nn.Module
    whose: str


class Models:
    """The encoders of a run, one at a time in the runner's model."""

    def __init__(self, runner: ClientRunner) -> None:
        self.runner = runner
        self.method = runner.config.method

    def first_server(self) -> ServerState:
        """The server before round 1: what is shared, at its first values."""
        return self.method.first_server({name: self.runner.initial[name] for name in self.runner.shared})

    def encoders(
        self, server: ServerState, memory_rounds: Mapping[int, int], limit: int
    ) -> Iterator[tuple[str, nn.Module]]:
        """The encoders that the method answers for: one global, or personal ones (evenly spread ids)."""
        if self.method.evaluates == "global":
            yield "global", self._global(server)
            return
        clients = self.runner.federation.clients
        for client in np.unique(np.linspace(0, clients - 1, min(limit, clients)).astype(int)):
            yield f"client {client}", self.personal(server, memory_rounds, int(client))

    def personal(self, server: ServerState, memory_rounds: Mapping[int, int], client: int) -> nn.Module:
        """A client's own encoder: what it would begin its next round with."""
        number = self.runner.config.rounds + 1
        task = Task(
            number, client, self.method.broadcast(server, client, number), memory_rounds.get(client, 0)
        )
        return self.method.personal_encoder(self.runner.receive(task))

    def untrained(self) -> nn.Module:
        restore(self.runner.model, self.runner.initial)
        return self.runner.model.part("encoder")

    def exported(self, server: ServerState, memory_rounds: Mapping[int, int]) -> Whose:
        """The encoder that people take away: the global one, or the first client's where there is none."""
        whose, module = next(self.encoders(server, memory_rounds, 1))
        return Whose(module, whose)

    def whose(self, probed: int) -> str:
        """What a number averaged over `probed` encoders is a number of."""
        return "global" if self.method.evaluates == "global" else f"personal, mean of {probed} clients"

    def probe(
        self,
        prober: Prober,
        protocols: list[str],
        server: ServerState,
        memory_rounds: Mapping[int, int],
        limit: int,
    ) -> list[dict[str, Any]]:
        """Entries of result.json: each protocol on the trained encoders and on the untrained one."""
        trained: dict[str, list[Scores]] = {protocol: [] for protocol in protocols}
        probed = 0
        for _, encoder in self.encoders(server, memory_rounds, limit):
            probed += 1
            for protocol, scores in prober.run_all(encoder, protocols).items():
                trained[protocol].append(scores)
        untrained = prober.run_all(self.untrained(), protocols)
        return [
            entry(protocol, self.whose(probed), prober, mean_scores(trained[protocol]), untrained[protocol])
            for protocol in protocols
        ]

    def _global(self, server: ServerState) -> nn.Module:
        restore(self.runner.model, self.runner.initial)
        restore(self.runner.model, server.model)
        return self.runner.model.part("encoder")
