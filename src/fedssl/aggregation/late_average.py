"""The mean of late global models (stochastic weight averaging, Izmailov et al. 2018, over rounds)."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedssl.aggregation.rule import is_counter
from fedssl.state import ServerState, State

PREFIX, COUNT = "average/", "average/count"


@torch.no_grad()
def average_late(server: ServerState, round: int, rounds: int, share: float) -> ServerState:
    """Add the models after a late round to their mean; after the last round, return the mean.

    Training continues from the models themselves. The mean is in the server's memory, so that a run can be
    stopped and resumed.

    Args:
        server: the server after the round.
        round: number of the round, from 1.
        rounds: rounds of the run.
        share: share of all rounds that are late; 0: none.
    """
    late = min(rounds, max(1, int(share * rounds + 0.5)))
    if not share or round <= rounds - late:
        return server
    memory = {**server.memory}
    count = int(memory.get(COUNT, 0)) + 1
    memory[COUNT] = torch.tensor(count)
    models: list[State] = []
    for number, model in enumerate(server.states):
        mean: State = {}
        for name, value in model.items():
            key = f"{PREFIX}{number}/{name}"
            if is_counter(value):
                mean[name] = value
            else:
                known = memory.get(key)
                mean[name] = memory[key] = value.clone() if known is None else known.lerp(value, 1 / count)
        models.append(mean)
    if round < rounds:
        return replace(server, memory=memory)
    memory = {name: value for name, value in memory.items() if not name.startswith(PREFIX)}
    if server.clusters:
        return replace(server, clusters=models, memory=memory)
    return replace(server, model=models[0], memory=memory)
