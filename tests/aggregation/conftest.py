from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fedssl import aggregation
from fedssl.aggregation.fltrust import FLTrust
from fedssl.aggregation.rule import Rule
from fedssl.rng import torch_rng
from fedssl.state import State, Upload

STATISTICS = frozenset({"bn.running_mean"})
SHAPES = {
    "conv.weight": (4, 3, 3, 3),
    "bn.weight": (4,),
    "bn.bias": (4,),
    "bn.running_mean": (4,),
    "temperature": (),
    "head.weight": (70, 90),  # more than one row of sums, and a rest
}
TYPES = {
    "conv.weight": torch.float32,
    "bn.weight": torch.float64,
    "bn.bias": torch.bfloat16,
    "bn.running_mean": torch.float32,
    "temperature": torch.float32,
    "head.weight": torch.float16,
}


def random_state(seed: int, mixed: bool) -> State:
    rng = torch_rng(seed, "state")
    state = {
        name: torch.randn(shape, generator=rng).to(TYPES[name] if mixed else torch.float32)
        for name, shape in SHAPES.items()
    }
    return {**state, "bn.num_batches_tracked": torch.tensor(7 * seed % 11)}


@pytest.fixture
def previous() -> State:
    return random_state(0, mixed=False)


@pytest.fixture
def make_uploads() -> Callable[..., list[Upload]]:
    """Random uploads; with `odd`, the first has a layer of zeros and the last one opposite to the global."""

    def make(
        clients: int, previous: State | None = None, mixed: bool = False, odd: bool = False
    ) -> list[Upload]:
        uploads = []
        for client in range(clients):
            state = random_state(client + 1, mixed)
            uploads.append(Upload(client, state, num_samples=10 + 7 * client, loss=0.5 + 0.3 * client))
        if odd and previous is not None:
            uploads[0].state["conv.weight"] = torch.zeros_like(previous["conv.weight"])
            uploads[-1].state["head.weight"] = -2 * previous["head.weight"]
            uploads[-1].state["bn.bias"] = previous["bn.bias"].clone()
        return uploads

    return make


def build(name: str, **options: Any) -> Rule:
    """A rule that is ready for a round, with the server's own update if it needs one."""
    rule = aggregation.build(name, **options)
    return rule.anchored(random_state(99, mixed=False)) if isinstance(rule, FLTrust) else rule


def clone(state: State) -> State:
    return {name: tensor.clone() for name, tensor in state.items()}
