"""Whose encoder is it: the global one, or the clients' own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from torch import nn

from fedssl.engines.runner import ClientRunner
from fedssl.engines.tasks import Task
from fedssl.evaluation.probes import Prober, entry
from fedssl.evaluation.scores import Scores, mean_scores
from fedssl.models.model import Model
from fedssl.state import ServerState, restore

T = TypeVar("T")


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
        self.engine = runner.config.engine
        # Clients that keep their normalisation layers have no model in common, whatever the method.
        self.one_for_all = self.method.evaluates == "global" and not self.method.private_norm

    def encoders(
        self, server: ServerState, memory_rounds: Mapping[int, int], limit: int
    ) -> Iterator[tuple[str, nn.Module]]:
        """The encoders that the method answers for: one global, or those of nodes or clients (spread ids)."""
        if not self.engine.sees_clients:
            for model in server.models:
                yield self.whose(len(server.models)), self._global(replace(server, models=[model]))
            return
        if self.one_for_all and self.engine.has_server:
            yield "global", self._global(server)
            return
        clients = self.runner.federation.clients
        for client in np.unique(np.linspace(0, clients - 1, min(limit, clients)).astype(int)):
            if self.one_for_all:
                yield f"node {client}", self._global(self.engine.at(server, int(client)))
            else:
                yield f"client {client}", self.personal(server, memory_rounds, int(client))

    def personal(
        self, server: ServerState, memory_rounds: Mapping[int, int], client: int, local_epochs: float = 0.0
    ) -> nn.Module:
        """A client's own encoder: what it would begin its next round with, or what training makes of that."""
        number = self.runner.config.rounds + 1
        broadcast = self.method.broadcast(self.engine.at(server, client), client, number)
        task = Task(number, client, broadcast, memory_rounds.get(client, 0))
        model = self.runner.adapt(task, local_epochs) if local_epochs else self.runner.receive(task)
        return self.method.personal_encoder(model)

    def untrained(self) -> nn.Module:
        restore(self.runner.model, self.runner.initial)
        return self.runner.model.part("encoder")

    def exported(self, server: ServerState, memory_rounds: Mapping[int, int]) -> Whose:
        """The encoder that people take away: the global one, or the first client's where there is none."""
        whose, module = next(self.encoders(server, memory_rounds, 1))
        return Whose(module, whose)

    def whose(self, probed: int) -> str:
        """What a number averaged over `probed` encoders is a number of."""
        if not self.engine.sees_clients and not self.one_for_all:
            return f"what sites have in common, mean of {probed} models"
        if self.one_for_all:
            return "global" if self.engine.has_server else f"each node's own, mean of {probed} nodes"
        kind = "personal" if self.method.evaluates == "global" else self.method.evaluates
        layers = ", each with its own normalisation layers" if self.method.private_norm else ""
        return f"{kind}, mean of {probed} clients{layers}"

    def probe(
        self,
        prober: Prober,
        protocols: list[str],
        server: ServerState,
        memory_rounds: Mapping[int, int],
        limit: int,
    ) -> list[dict[str, Any]]:
        """Entries of result.json: each protocol on the trained encoders and on the untrained one."""

        def scores(encoder: nn.Module) -> dict[str, Scores]:
            return prober.run_all(encoder, protocols, self.classifier_on(encoder))

        trained = self.each(scores, server, memory_rounds, limit)
        untrained = scores(self.untrained())
        return [
            entry(
                protocol,
                self.whose(len(trained)),
                prober,
                mean_scores([found[protocol] for found in trained]),
                untrained[protocol],
            )
            for protocol in protocols
        ]

    def each(
        self,
        measure: Callable[[nn.Module], T],
        server: ServerState,
        memory_rounds: Mapping[int, int],
        limit: int,
    ) -> list[T]:
        """A measurement of every encoder that the method answers for; what clients share is measured once."""
        known: dict[str, T] = {}
        found = []
        for _, encoder in self.encoders(server, memory_rounds, limit):
            network = nn.ModuleList([encoder, *filter(None, [self.classifier_on(encoder)])])
            digest = hashlib.blake2b()
            for tensor in network.state_dict().values():
                digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
            if digest.hexdigest() not in known:
                known[digest.hexdigest()] = measure(encoder)
            found.append(known[digest.hexdigest()])
        return found

    @property
    def classifies(self) -> bool:
        """Whether the objective trains a classifier of its own."""
        return self.runner.model.has("classifier")

    def classifier_on(self, encoder: nn.Module) -> nn.Module | None:
        """The classifier that was trained together with this encoder (a client may have two of both)."""
        for module in self.runner.model.modules():
            if isinstance(module, Model) and module.has("classifier") and module.part("encoder") is encoder:
                return module.part("classifier")
        return None

    def _global(self, server: ServerState) -> nn.Module:
        restore(self.runner.model, self.runner.initial)
        restore(self.runner.model, server.model)
        return self.runner.model.part("encoder")
