"""What travels and what stays: plain mappings from names to tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedssl.vectors import flat, square_distance

State = dict[str, Tensor]


@dataclass
class Upload:
    """What one client sends to the server: tensors by name, and a few numbers.

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
    """What the server sends to one client: one model (or several, for clusters), and a few numbers."""

    models: list[State]
    values: dict[str, float] = field(default_factory=dict)


@dataclass
class ServerState:
    """All that a server knows between rounds. `models` is broadcast; `memory` and `values` are its own."""

    models: list[State]
    memory: State = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)

    @property
    def model(self) -> State:
        """The global model of a method that has one."""
        return self.models[0]


@dataclass
class ClientMemory:
    """What a client keeps for itself between rounds."""

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


def distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor], names: Iterable[str]) -> float:
    """L2 norm of the difference over the named tensors taken as one vector."""
    return math.sqrt(sum(square_distance(flat(a[name]), flat(b[name])) for name in names))


def layer_distances(
    a: Mapping[str, Tensor], b: Mapping[str, Tensor], names: Iterable[str]
) -> dict[str, float]:
    """For each of the named tensors, the L2 norm of its difference."""
    return {name: distance(a, b, [name]) for name in names}
