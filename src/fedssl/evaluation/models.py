"""The encoders of a run: the global one, or personal ones."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from torch import nn

from fedssl.engines.measurements import one_encoder
from fedssl.engines.recalibration import Recalibration
from fedssl.engines.runner import ClientRunner
from fedssl.engines.tasks import Task
from fedssl.evaluation.probes import Prober, entry
from fedssl.evaluation.scores import Scores, mean_scores
from fedssl.models.model import Model
from fedssl.state import ServerState, State, restore

T = TypeVar("T")


@dataclass(frozen=True)
class OwnedEncoder:
    """An encoder and its owner.

    Attributes:
        module: the encoder, a copy that nothing else changes.
        owner: `global`, `client 3`, `node 3`, or what the sites share.
        classifier: the classifier that was trained on this encoder, if the objective trains one.
    """

    module: nn.Module
    owner: str
    classifier: nn.Module | None = None


class Models:
    """The encoders of a run. What it returns are copies, so that several can be used at once."""

    def __init__(self, runner: ClientRunner, recalibration: Recalibration | None = None) -> None:
        """Read encoders out of a runner.

        Args:
            runner: has the model, and the clients' images if they are on this machine.
            recalibration: recomputes the encoders' batch statistics; None: they are not changed.
        """
        self.runner, self.recalibration = runner, recalibration
        self.method = runner.config.method
        self.engine = runner.config.engine
        # Clients that keep their normalization layers have no common model, whatever the method.
        self.one_for_all = self.method.evaluates == "global" and not self.method.private_norm

    def encoders(
        self, server: ServerState, memory_rounds: Mapping[int, int], limit: int
    ) -> Iterator[OwnedEncoder]:
        """The encoders that are the method's result: the global one, or those of nodes or clients.

        Args:
            server: the state of the server.
            memory_rounds: for every client, the round that wrote its memory.
            limit: the largest number of clients; their ids are spread evenly.
        """
        if not self.engine.sees_clients:
            for state in server.states:
                yield self._global(state, self.describe_owner(len(server.states)))
            return
        if self.one_for_all and self.engine.has_server:
            yield self._global(server.model, "global")
            return
        clients = self.runner.federation.clients
        for client in np.unique(np.linspace(0, clients - 1, min(limit, clients)).astype(int)):
            if self.one_for_all:
                yield self._global(server.seen_by(int(client)).model, f"node {client}")
            else:
                yield self.personal_encoder(server, memory_rounds, int(client))

    @property
    def kind_of_client(self) -> str:
        """What `of_client` returns: a `global`, `cluster` or `personal` encoder."""
        if one_encoder(self.runner):
            return "global"
        return "personal" if self.method.evaluates == "global" else self.method.evaluates

    def of_client(self, server: ServerState, memory_rounds: Mapping[int, int], client: int) -> OwnedEncoder:
        """A copy of the encoder that a client uses: its own, its cluster's, or the global one.

        Args:
            server: the state of the server.
            memory_rounds: for every client, the round that wrote its memory.
            client: id of the client.
        """
        if self.kind_of_client == "global":
            owner = "global" if self.engine.has_server else f"node {client}"
            return self._global(server.seen_by(client).model, owner)
        return self.personal_encoder(server, memory_rounds, client)

    def personal(
        self, server: ServerState, memory_rounds: Mapping[int, int], client: int, local_epochs: float = 0.0
    ) -> nn.Module:
        """A copy of a client's own encoder; the arguments are those of `load_client`."""
        return self.personal_encoder(server, memory_rounds, client, local_epochs).module

    def personal_encoder(
        self, server: ServerState, memory_rounds: Mapping[int, int], client: int, local_epochs: float = 0.0
    ) -> OwnedEncoder:
        """A copy of a client's own encoder, with its classifier."""
        model = self.load_client(server, memory_rounds, client, local_epochs)
        encoder = self._copy(self.method.personal_encoder(model), f"client {client}")
        if self.recalibration is not None and len(self.runner.federation.parts[client]):
            restore(encoder.module, self.runner.measured(client, encoder.module))
        return encoder

    def load_client(
        self, server: ServerState, memory_rounds: Mapping[int, int], client: int, local_epochs: float = 0.0
    ) -> Model:
        """Load a client's model into the runner's, where it stays until the next model is loaded.

        Args:
            server: the state of the server.
            memory_rounds: for every client, the round that wrote its memory.
            client: id of the client.
            local_epochs: epochs of local training; 0: the model that its next round starts from.

        Returns:
            The runner's model, which holds one client at a time.
        """
        number = self.runner.config.rounds + 1
        broadcast = self.method.broadcast(server.seen_by(client), client, number)
        task = Task(number, client, broadcast, memory_rounds.get(client, 0))
        return self.runner.adapt(task, local_epochs) if local_epochs else self.runner.receive(task)

    def untrained(self) -> nn.Module:
        """A copy of the encoder before round 1."""
        return self._global({}, "untrained").module

    def exported(self, server: ServerState, memory_rounds: Mapping[int, int]) -> OwnedEncoder:
        """The encoder of the run's result: the global one, or else the first client's."""
        return next(self.encoders(server, memory_rounds, 1))

    def describe_owner(self, probed: int) -> str:
        """Describe the owner of a number that is averaged over `probed` encoders."""
        if not self.engine.sees_clients and not self.one_for_all:
            return f"what sites have in common, mean of {probed} models"
        if self.one_for_all:
            return "global" if self.engine.has_server else f"each node's own, mean of {probed} nodes"
        kind = "personal" if self.method.evaluates == "global" else self.method.evaluates
        layers = ", each with its own normalization layers" if self.method.private_norm else ""
        return f"{kind}, mean of {probed} clients{layers}"

    def probe(
        self,
        prober: Prober,
        protocols: list[str],
        server: ServerState,
        memory_rounds: Mapping[int, int],
        limit: int,
    ) -> list[dict[str, Any]]:
        """Run protocols on the trained encoders and on the untrained one; returns entries of result.json."""

        def scores(encoder: OwnedEncoder) -> dict[str, Scores]:
            return prober.run_all(encoder.module, protocols, encoder.classifier)

        trained = self._measure(scores, server, memory_rounds, limit)
        untrained = scores(self._global({}, "untrained"))
        return [
            entry(
                protocol,
                self.describe_owner(len(trained)),
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
        """Apply `measure` to every encoder of `encoders`; equal encoders are measured once."""
        return self._measure(lambda encoder: measure(encoder.module), server, memory_rounds, limit)

    def _measure(
        self,
        measure: Callable[[OwnedEncoder], T],
        server: ServerState,
        memory_rounds: Mapping[int, int],
        limit: int,
    ) -> list[T]:
        known: dict[str, T] = {}
        found = []
        for encoder in self.encoders(server, memory_rounds, limit):
            network = nn.ModuleList([encoder.module, *filter(None, [encoder.classifier])])
            key = digest(network)
            if key not in known:
                known[key] = measure(encoder)
            found.append(known[key])
        return found

    @property
    def classifies(self) -> bool:
        """Whether the objective trains a classifier."""
        return self.runner.model.has("classifier")

    def _global(self, state: State, owner: str) -> OwnedEncoder:
        """The encoder of a state; missing tensors have their initial values."""
        fresh: State = {}
        if self.recalibration is not None and self.one_for_all and state:
            fresh = self.recalibration.of(state)
        restore(self.runner.model, self.runner.initial)
        restore(self.runner.model, {**state, **fresh})
        return self._copy(self.runner.model.part("encoder"), owner)

    def _copy(self, encoder: nn.Module, owner: str) -> OwnedEncoder:
        classifier = self._classifier_on(encoder)
        return OwnedEncoder(copy.deepcopy(encoder), owner, copy.deepcopy(classifier))

    def _classifier_on(self, encoder: nn.Module) -> nn.Module | None:
        """The classifier of this encoder in the runner's model (a client may have two models)."""
        for module in self.runner.model.modules():
            if isinstance(module, Model) and module.has("classifier") and module.part("encoder") is encoder:
                return module.part("classifier")
        return None


def digest(module: nn.Module) -> str:
    """A hash of the tensors of a module."""
    found = hashlib.blake2b()
    for tensor in module.state_dict().values():
        found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()
