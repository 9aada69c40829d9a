"""The server's optimizers against torch.optim, given the same pseudo-gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedssl.aggregation.server_optimizer import ServerOptimizer
from fedssl.errors import ConfigError
from fedssl.options import build
from fedssl.state import State

from .conftest import STATISTICS, clone, random_state

ROUNDS = 6


def run(optimizer: ServerOptimizer, previous: State, between: Callable[[State], State] = dict) -> list[State]:
    """Rounds whose aggregate is the state before plus something that depends on the round only."""
    states, memory = [previous], State()
    for round in range(1, ROUNDS + 1):
        state, memory = optimizer.step(states[-1], aggregate(states[-1], round), memory, round, STATISTICS)
        states.append(state)
        memory = between(memory)
    return states[1:]


def aggregate(state: State, round: int) -> State:
    shift = random_state(100 + round, mixed=False)
    return {
        name: tensor + (0.1 * shift[name] if tensor.is_floating_point() else 1)
        for name, tensor in state.items()
    }


def by_torch(
    make: Callable[[list[torch.Tensor]], torch.optim.Optimizer], previous: State, decay: float
) -> list[State]:
    parameters = {
        name: t.clone() for name, t in previous.items() if t.is_floating_point() and name not in STATISTICS
    }
    optimizer, states = make(list(parameters.values())), []
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, decay)
    for round in range(1, ROUNDS + 1):
        for name, target in aggregate(parameters, round).items():
            parameters[name].grad = parameters[name] - target
        optimizer.step()
        schedule.step()
        states.append(clone(parameters))
    return states


@pytest.mark.parametrize("decay", [1.0, 0.9])
@pytest.mark.parametrize(
    ("options", "make"),
    [
        ({"optimizer": "sgd", "lr": 0.3}, lambda p: torch.optim.SGD(p, lr=0.3)),
        ({"optimizer": "sgd", "lr": 1.7}, lambda p: torch.optim.SGD(p, lr=1.7)),
        (
            {"optimizer": "sgd", "lr": 0.5, "momentum": 0.9},
            lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
        ),
        ({"optimizer": "adam", "lr": 0.01}, lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.9, 0.99))),
        (
            {"optimizer": "adam", "lr": 0.01, "beta1": 0.5, "beta2": 0.9, "eps": 1e-3},  # β of PaDPaF
            lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.5, 0.9), eps=1e-3),
        ),
    ],
)
def test_steps_equal_torch_optim(
    options: dict[str, Any],
    make: Callable[[list[torch.Tensor]], torch.optim.Optimizer],
    decay: float,
    previous: State,
) -> None:
    ours = run(ServerOptimizer(**options, decay=decay), previous)
    for mine, theirs in zip(ours, by_torch(make, previous, decay), strict=True):
        for name, tensor in theirs.items():
            torch.testing.assert_close(mine[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"optimizer": "none"}, {"optimizer": "sgd", "lr": 1.0, "momentum": 0.0}])
@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "mixed"])
def test_the_plain_step_is_bit_identical_to_the_aggregate(options: dict[str, Any], mixed: bool) -> None:
    previous, new = random_state(0, mixed), random_state(1, mixed)
    state, memory = ServerOptimizer(**options).step(previous, new, {}, 1, STATISTICS)
    assert state.keys() == new.keys()
    assert all(torch.equal(state[name], new[name]) and state[name].dtype == new[name].dtype for name in new)
    assert memory == {}


@pytest.mark.parametrize(
    "optimizer",
    [ServerOptimizer(optimizer="sgd", lr=0.5, momentum=0.9), ServerOptimizer(optimizer="adam", lr=0.1)],
)
def test_saving_the_memory_does_not_change_bits(
    optimizer: ServerOptimizer, previous: State, tmp_path: Path
) -> None:
    def save_and_load(memory: State) -> State:
        save_file(memory, tmp_path / "memory.safetensors")
        return load_file(tmp_path / "memory.safetensors")

    for a, b in zip(run(optimizer, previous), run(optimizer, previous, save_and_load), strict=True):
        assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", ["none", "sgd", "adam"])
def test_statistics_and_counters_come_from_the_aggregate(name: Any, previous: State) -> None:
    lr = {} if name == "none" else {"lr": 0.1}
    new = aggregate(previous, 1)
    state, _ = ServerOptimizer(optimizer=name, **lr).step(previous, new, {}, 1, STATISTICS)
    for tensor in ("bn.running_mean", "bn.num_batches_tracked"):
        assert torch.equal(state[tensor], new[tensor])


@pytest.mark.parametrize(
    "optimizer",
    [
        ServerOptimizer(),
        ServerOptimizer(optimizer="sgd"),
        ServerOptimizer(optimizer="sgd", momentum=0.9),
        ServerOptimizer(optimizer="adam"),
    ],
)
def test_arguments_are_not_changed(optimizer: ServerOptimizer, previous: State) -> None:
    new = aggregate(previous, 1)
    _, memory = optimizer.step(previous, new, {"another's": torch.ones(2)}, 1, STATISTICS)
    given = [previous, new, memory]
    before = [clone(state) for state in given]
    state, after = optimizer.step(previous, new, memory, 2, STATISTICS)
    assert torch.equal(after["another's"], torch.ones(2))
    for tensor in state.values():
        tensor.fill_(77)
    for mine, copy in zip(given, before, strict=True):
        assert mine.keys() == copy.keys()
        assert all(torch.equal(mine[name], copy[name]) for name in mine)


def test_bad_input(previous: State) -> None:
    with pytest.raises(ValueError, match=r"aggregate: tensor bn\.bias is missing"):
        ServerOptimizer().step(previous, {n: t for n, t in previous.items() if n != "bn.bias"}, {}, 1)
    with pytest.raises(ConfigError, match=r"server\.lr=0\.5: .*no effect with optimizer=none"):
        build(ServerOptimizer, {"lr": 0.5}, "server")
    with pytest.raises(ConfigError, match=r"server\.momentum=0\.9: .*no effect with optimizer=adam"):
        build(ServerOptimizer, {"optimizer": "adam", "momentum": 0.9}, "server")
    with pytest.raises(ConfigError, match=r"server\.optimizer='adan'"):
        build(ServerOptimizer, {"optimizer": "adan"}, "server")
