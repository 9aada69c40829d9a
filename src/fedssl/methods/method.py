"""What every federated method has in common: four steps, of which a method replaces some.

    server: broadcast, aggregate          client: receive, train, and what it may upload and keep

A method has no state and knows nothing of processes, networks or disks. What the server knows is
in `ServerState`, what a client knows is in `ClientMemory`; an engine carries both about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import nn

from fedssl.aggregation.rule import Fold, Rule
from fedssl.aggregation.server_optimizer import ServerOptimizer
from fedssl.methods.client import Client
from fedssl.methods.training import Training, train_locally
from fedssl.models.encoders import Encoder
from fedssl.models.model import Model, Part, Role
from fedssl.models.options import ModelConfig
from fedssl.options import Choice
from fedssl.state import Broadcast, ClientMemory, ServerState, State, Upload

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


class Method(Choice):
    """The loop with nothing replaced is FedAvg."""

    evaluates: ClassVar[Literal["global", "cluster", "personal"]] = "global"  # whose encoder is the result
    pools_data: ClassVar[bool] = False  # one client holds the data of all
    effort: ClassVar[float] = 1.0  # of a step, beside FedAvg's: for estimates
    when_evaluated: ClassVar[tuple[str, ...]] = ()  # options that `fedssl eval` may change: none of training

    private_norm: bool = Field(
        False,
        description="normalisation layers, parameters and statistics, stay on the client (FedBN); the result "
        "is then the mean over clients, each with its own",
    )

    def parts(self, model: Model, encoder: Callable[[], Encoder], config: ModelConfig) -> dict[str, Part]:
        """What the method needs beside the objective's own parts; `encoder` builds another fresh one."""
        return {}

    def personal_encoder(self, model: Model) -> nn.Module:
        """A client's own encoder, once its model has been received."""
        return model.part("encoder")

    # --- what leaves a client, and what it keeps ---------------------------------------------

    def shared(self, model: Model) -> list[str]:
        """Tensors that leave the client. Nothing else can."""
        return model.names(Role.SHARED)

    def remembered(self, model: Model) -> list[str]:
        """Tensors that a client keeps for its next round: all it does not share."""
        shared = set(self.shared(model))
        derived = set(model.names(Role.DERIVED))
        return [name for name in model.state_dict() if name not in shared and name not in derived]

    def first_server(self, shared: State) -> ServerState:
        """The server before round 1, from the first values of what is shared."""
        return ServerState([shared])

    # --- at the edge of the client, whatever the method: normalisation layers that stay there ----

    def own_norm(self, model: Model) -> list[str]:
        """Normalisation layers, found by module type, that the client keeps though the method shares them."""
        shared = set(self.shared(model)) if self.private_norm else set()
        return [name for name in model.normalisation_names() if name in shared]

    def uploaded(self, model: Model) -> list[str]:
        """What in fact leaves the client: what is shared, less its own normalisation layers."""
        own = set(self.own_norm(model))
        return [name for name in self.shared(model) if name not in own]

    def kept(self, model: Model) -> list[str]:
        """What the client in fact keeps: what is remembered, and its own normalisation layers."""
        return list(dict.fromkeys([*self.remembered(model), *self.own_norm(model)]))

    # --- the four steps ----------------------------------------------------------------------

    def broadcast(self, server: ServerState, client: int, round: int) -> Broadcast:
        """What the server sends to one client."""
        return Broadcast(server.models)

    def receive(self, client: Client, broadcast: Broadcast, memory: ClientMemory) -> dict[str, float]:
        """Turn the broadcast and the client's own memory into the model to train; numbers to log."""
        client.start_from(broadcast.models[0], memory.state)
        return {}

    def train(self, client: Client) -> Training:
        """Minimise the objective on local data."""
        return train_locally(client)

    def remember(self, client: Client, memory: ClientMemory) -> dict[str, float]:
        """Numbers (beside the tensors of `remembered`) that the client keeps for its next round."""
        return memory.values

    def aggregate(self, server: ServerState, round: int, tools: ServerTools) -> Aggregate:
        """Begin to fold the uploads of a round into the next server state."""
        return Aggregate(server, round, tools)


class Aggregate:
    """The next server state in the making: one global model, folded by the configured rule."""

    def __init__(self, server: ServerState, round: int, tools: ServerTools) -> None:
        self.server, self.round, self.tools = server, round, tools
        self.fold: Fold = tools.rule.start(server.model, tools.statistics, round)

    def add(self, upload: Upload) -> dict[str, Any]:
        """Fold one upload in; what to log about it."""
        self.fold.add(upload)
        return self.fold.report[upload.client]

    def finish(self) -> ServerState:
        aggregate: State = self.fold.finish()
        model, memory = self.tools.optimizer.step(
            self.server.model, aggregate, self.server.memory, self.round, self.tools.statistics
        )
        return ServerState([model], memory, self.server.values)
