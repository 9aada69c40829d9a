"""The base class of federated methods: four steps, some of which a method replaces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import nn

from fedssl.aggregation.rule import Fold, Rule
from fedssl.aggregation.server_optimizer import ServerOptimizer
from fedssl.errors import ConfigError
from fedssl.methods.client import Client
from fedssl.methods.training import Training, train_locally
from fedssl.models.encoders import Encoder
from fedssl.models.model import Model, Part, Role
from fedssl.models.options import ModelConfig
from fedssl.options import Choice
from fedssl.state import Broadcast, ServerState, State, Upload

# The papers' "encoder" W includes the projection MLP that replaces its last layer.
ENCODER = ("encoder", "projector")
PREDICTOR = ("predictor",)


@dataclass(frozen=True)
class ServerTools:
    """What the server aggregates with."""

    rule: Rule
    optimizer: ServerOptimizer
    statistics: frozenset[str]  # names of BatchNorm's running statistics
    parameters: frozenset[str]  # names of the encoder's parameters (for distances)

    def check_server_sees_uploads(self, reason: str) -> None:
        """Raise a ConfigError if clients apply the rule themselves, so that the server sees only sums.

        Args:
            reason: what the method's server needs the uploads for, and what to do instead.
        """
        if getattr(self.rule, "client_side", False):
            raise ConfigError(
                f"aggregation.client_side=true hides the clients' models from the server: {reason}"
            )


class Method(Choice):
    """A federated method; without any step replaced it is FedAvg.

    A round has four steps. A method overrides those it changes:

    1. `broadcast(server, client, round)`, on the server: returns the `Broadcast` for one client.
    2. `receive(client, broadcast, memory)`, on the client: loads the model to train into `client.model`,
       usually with `client.start_from`; returns numbers to log.
    3. `train(client)`, on the client: trains `client.model`; returns a `Training`. The tensors that
       `shares` names are then uploaded, and those that `keeps` names are stored on the client.
    4. `aggregate(server, round, tools)`, on the server: returns an `Aggregate`, which takes the uploads
       one by one and turns them into the next `ServerState`.

    A method object holds options only, never the state of a run. Everything the server knows is in its
    `ServerState`. What a client knows from earlier rounds is in `memory` (tensors) and `client.notes`
    (numbers). Private normalization layers (`private_norm`) need no care: the runner removes them from
    uploads and completes broadcasts with the client's own.
    """

    evaluates: ClassVar[Literal["global", "cluster", "personal"]] = "global"  # whose encoder is the result
    pools_data: ClassVar[bool] = False  # one client holds the data of all
    effort: ClassVar[float] = 1.0  # cost of a step relative to FedAvg's, for time estimates
    when_evaluated: ClassVar[tuple[str, ...]] = ()  # options that `fedssl eval` may change

    private_norm: bool = Field(
        False,
        description="keep normalization layers (parameters and statistics) on the client (FedBN); results "
        "are then means over clients, each with its own layers",
    )

    def parts(self, model: Model, encoder: Callable[[], Encoder], config: ModelConfig) -> dict[str, Part]:
        """Parts that the method adds to those of the objective.

        Args:
            model: the objective's model.
            encoder: builds another encoder of the same architecture.
            config: the model's options.
        """
        return {}

    def personal_encoder(self, model: Model) -> nn.Module:
        """A client's own encoder, once its model has been received."""
        return model.part("encoder")

    @property
    def personalizes(self) -> bool:
        """Whether clients have their own encoders in addition to the result for all."""
        return type(self).personal_encoder is not Method.personal_encoder

    @property
    def relays(self) -> bool:
        """Whether models go from client to client within a round."""
        return type(self).routes is not Method.routes

    def warning(self, line: Mapping[str, Any]) -> str:
        """A warning to log about a round (a line of metrics.jsonl); empty: none."""
        return ""

    # --- what a client shares, and what it keeps ----------------------------------------------

    def shares(self, model: Model) -> list[str]:
        """Names of the tensors that are uploaded: by default those of shared parts. No others can be."""
        return model.names(Role.SHARED)

    def keeps(self, model: Model) -> list[str]:
        """Names of the tensors that a client keeps for its next round: by default all it does not share."""
        shared = set(self.shares(model))
        derived = set(model.names(Role.DERIVED))
        return [name for name in model.state_dict() if name not in shared and name not in derived]

    def first_server(self, shared: State, another: Callable[[int], State]) -> ServerState:
        """The server before round 1.

        Args:
            shared: the initial values of the shared tensors.
            another: returns those of another random initialization, by its number, from 1.
        """
        return ServerState(shared)

    def routes(self, clients: Sequence[int], round: int, seed: int) -> list[list[int]]:
        """Define which clients of a round train at the same time: by default all.

        Args:
            clients: ids of the clients of the round, in order.
            round: number of the round, from 1.
            seed: the run's seed, for an order that is drawn.

        Returns:
            Routes, with every client on one of them. Routes run at the same time. The first client of a route
            starts from the global model, every other one from the model of the client before it; the last
            one's model is aggregated.
        """
        return [[client] for client in clients]

    # --- the four steps ----------------------------------------------------------------------

    def broadcast(self, server: ServerState, client: int, round: int) -> Broadcast:
        """Step 1, on the server: choose what one client is sent.

        Args:
            server: the state of the server, or in gossip that of the client's own node.
            client: id of the client.
            round: number of the round, from 1.

        Returns:
            The model or the cluster models, and numbers for this client.
        """
        return Broadcast(server.model, server.clusters)

    def receive(self, client: Client, broadcast: Broadcast, memory: State) -> dict[str, float]:
        """Step 2, on the client: load the model to train into `client.model`.

        Args:
            client: the client, with the numbers of its earlier rounds in `client.notes`.
            broadcast: what the server sent.
            memory: the tensors that the client kept in its last round; empty in its first.

        Returns:
            Numbers about this client for metrics.jsonl.
        """
        client.start_from(broadcast.model, memory)
        return {}

    def reference_model(self, client: Client, broadcast: Broadcast) -> State:
        """The received model that the client's update is measured from: by default the global model.

        The runner calls it after `receive` and sets `client.received`. A method with clusters returns the
        model of the cluster that the client chose.
        """
        return broadcast.model

    def train(self, client: Client) -> Training:
        """Step 3, on the client: train `client.model` on local data.

        Args:
            client: the client after `receive`; `client.received` is the model that it was sent.
                Numbers written to `client.notes` are available in its next round.

        Returns:
            The loss, the number of steps and views, and numbers for metrics.jsonl.
        """
        return train_locally(client)

    def aggregate(self, server: ServerState, round: int, tools: ServerTools) -> Aggregate:
        """Step 4, on the server: start to combine the uploads of a round.

        Args:
            server: the state of the server before the round.
            round: number of the round, from 1.
            tools: the configured aggregation rule and server optimizer.

        Returns:
            An `Aggregate`: every upload is added to it, and `finish` returns the next server state.
        """
        return Aggregate(server, round, tools)


class Aggregate:
    """Computes the next server state: one global model, aggregated by the configured rule."""

    def __init__(self, server: ServerState, round: int, tools: ServerTools) -> None:
        self.server, self.round, self.tools = server, round, tools
        self.fold: Fold = tools.rule.start(server.model, tools.statistics, round)

    def add(self, upload: Upload) -> dict[str, Any]:
        """Add one upload; returns what to log about it."""
        self.fold.add(upload)
        return self.fold.report[upload.client]

    def finish(self) -> ServerState:
        aggregate: State = self.fold.finish()
        model, memory = self.tools.optimizer.step(
            self.server.model, aggregate, self.server.memory, self.round, self.tools.statistics
        )
        return replace(self.server, model=model, memory=memory)
