"""States of servers and clients: mappings from names to tensors."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from fedssl.vectors import flat, square_distance

State = dict[str, Tensor]


@dataclass
class Upload:
    """An upload of one client to the server: tensors by name, and a few numbers.

    Attributes:
        client: the client's number; rules add uploads in this order, so that sums round the same.
        state: the tensors that the method shares, by name.
        num_samples: number of images the client trained on.
        loss: mean training loss of the round, for rules that weight by it.
        values: further numbers that a method sends, by name.
    """

    client: int
    state: State
    num_samples: int
    loss: float = 0.0
    values: dict[str, float] = field(default_factory=dict)


@dataclass
class Broadcast:
    """A message from the server to one client.

    Attributes:
        model: the global model; empty if the server has clusters.
        clusters: one model per cluster; empty if the server has one global model.
        values: a few numbers.
    """

    model: State = field(default_factory=dict)
    clusters: list[State] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_states(cls, states: list[State], values: dict[str, float]) -> Broadcast:
        """The inverse of `states`: a single state is the global model, several are clusters."""
        return cls(states[0], [], values) if len(states) == 1 else cls({}, states, values)

    @property
    def states(self) -> list[State]:
        """All models that are sent."""
        return self.clusters or [self.model]

    def map(self, function: Callable[[State], State]) -> Broadcast:
        """The same broadcast with a function applied to every model."""
        return Broadcast.from_states([function(state) for state in self.states], self.values)


@dataclass
class ServerState:
    """The server's state between rounds.

    Attributes:
        model: the global model; empty if clusters or nodes take its place.
        clusters: one model per cluster of clients (FeatARC).
        nodes: one model per client, where clients have no server (gossip).
        memory: tensors that are not sent, for example the moments of the server optimizer.
        values: numbers that are not sent.
    """

    model: State = field(default_factory=dict)
    clusters: list[State] = field(default_factory=list)
    nodes: list[State] = field(default_factory=list)
    memory: State = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)

    @property
    def states(self) -> list[State]:
        """All models: the clusters', the nodes', or the global one."""
        return self.clusters or self.nodes or [self.model]

    def seen_by(self, client: int) -> ServerState:
        """The server from a client's point of view: without a server, its own node's model."""
        return replace(self, model=self.nodes[client], nodes=[]) if self.nodes else self


@dataclass
class ClientMemory:
    """A client's private state between rounds."""

    state: State = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)


def snapshot(module: nn.Module, names: Iterable[str] | None = None) -> State:
    """Copies of a module's tensors (all, or those named)."""
    state = module.state_dict()
    return {
        name: state[name].detach().clone(memory_format=torch.contiguous_format)
        for name in (state if names is None else names)
    }


@torch.no_grad()
def restore(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy tensors into a module in place; names it does not have are an error."""
    own = module.state_dict()
    if state:  # lists must not be empty
        torch._foreach_copy_([own[name] for name in state], list(state.values()))


def digest(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of the names, types, shapes and values of tensors, whatever their order."""
    found = hashlib.sha256()
    for name in sorted(state):
        value = state[name].detach().cpu().contiguous()
        found.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def mix(own: Mapping[str, Tensor], new: Mapping[str, Tensor], weight: float) -> State:
    """Mix two states: weight·own + (1−weight)·new for every floating tensor that both have.

    Args:
        own: the client's own tensors; may be empty.
        new: the tensors that were received.
        weight: share of `own`, between 0 and 1. Both ends are exact.

    Returns:
        All tensors of either state. Integer tensors (counters of batches) come from `new`; a tensor that
        only one of the two states has is taken from it.
    """
    mixed = {**own, **new}
    if weight == 0:
        return mixed
    for name in own.keys() & new.keys():
        if new[name].is_floating_point() and own[name] is not new[name]:
            mixed[name] = own[name] if weight == 1 else weight * own[name] + (1 - weight) * new[name]
    return mixed


def distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor], names: Iterable[str]) -> float:
    """L2 norm of the difference over all named tensors."""
    return math.sqrt(sum(square_distance(flat(a[name]), flat(b[name])) for name in names))


def layer_distances(
    a: Mapping[str, Tensor], b: Mapping[str, Tensor], names: Iterable[str]
) -> dict[str, float]:
    """L2 norm of the difference of each named tensor."""
    return {name: distance(a, b, [name]) for name in names}
