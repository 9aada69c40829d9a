"""How far local models drift from the global one and from each other (Dec-SSL, §B.3).

d_w is the sum over layers of the L2 norm of the difference of their weights; a layer is a parameter of the
backbone. Every round logs it between the model that a client received and the one it made of it (`drift` in
metrics.jsonl). Here it is the paper's: between the local models of the last round, and to the global model
that was made of them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedssl.engines.checkpoint import Checkpoints
from fedssl.engines.loop import draw_clients, plan_round
from fedssl.engines.tasks import Task
from fedssl.errors import RunError
from fedssl.evaluation.loaded import LoadedRun, load_run
from fedssl.rundir import RunDir
from fedssl.state import ServerState, State, layer_distances
from fedssl.threads import with_threads


@dataclass(frozen=True)
class LocalModels:
    """The local models of a run's last round, and for each the global model it went into."""

    finished: LoadedRun
    round: int
    local: dict[int, State]  # by client
    merged: dict[int, State]

    @property
    def layers(self) -> list[str]:
        """Parameters of the backbone that the clients share."""
        return self.finished.models.runner.backbone


def drift(run: str | Path) -> dict[str, Any]:
    """d_w of every local model to the global one, and of every pair of local models; in all and by layer."""
    found = local_models(run)
    rows = [
        _row({"client": client}, found.merged[client], own, found.layers)
        for client, own in found.local.items()
    ]
    pairs = [
        _row({"clients": [a, b]}, found.local[a], found.local[b], found.layers)
        for a, b in itertools.combinations(found.local, 2)
    ]
    return {"round": found.round, "to_global": rows, "between": pairs}


def _row(who: dict[str, Any], a: State, b: State, layers: list[str]) -> dict[str, Any]:
    apart = layer_distances(a, b, layers)
    return {**who, "d_w": sum(apart.values()), "layers": apart}


def local_models(run: str | Path) -> LocalModels:
    """The models that clients uploaded in the last round.

    A method whose clients remember their own model has them on disk. Else the round is run again, from the
    checkpoint before it, which gives the same bits.
    """
    directory = RunDir.open(run)
    with with_threads(0):
        finished = load_run(directory, {})
        if not finished.models.runner.backbone:
            raise RunError(f"method {finished.trained.method.name} shares no encoder to drift from")
        checkpoints = finished.live.checkpoints
        number = checkpoints.rounds()[-1]
        line = next(line for line in directory.metrics() if line["round"] == number)
        local = _remembered(finished, line) or _run_again(finished, checkpoints, number, line)
    merged = {
        row["client"]: _model_of(finished.server, int(row.get("cluster", row["client"])))
        for row in line["clients"]
    }
    return LocalModels(finished, number, local, merged)


def _model_of(server: ServerState, number: int) -> State:
    """The one global model, or the cluster's (FeatARC), or the node's (gossip)."""
    return server.states[number] if len(server.states) > 1 else server.model


def _remembered(finished: LoadedRun, line: dict[str, Any]) -> dict[int, State]:
    """Local models from the clients' memories; nothing if these do not hold them."""
    runner, found = finished.models.runner, {}
    if not set(runner.backbone) <= set(runner.boundary.stays):
        return {}
    for row in line["clients"]:
        found[row["client"]] = runner.memories.load(row["client"], line["round"]).state
    return found


def _run_again(
    finished: LoadedRun, checkpoints: Checkpoints, number: int, line: dict[str, Any]
) -> dict[int, State]:
    runner, config = finished.models.runner, finished.trained
    if not config.engine.sees_clients:
        raise RunError(f"the local models of round {number} cannot be made anew: the images are at the sites")
    if number > 1 and number - 1 not in checkpoints.rounds():
        raise RunError(
            f"local models of round {number} are made anew from the checkpoint of round {number - 1}, and "
            f"only {checkpoints.rounds()} are there: train with checkpoint.every=1 checkpoint.keep=2"
        )
    if runner.boundary.stays:
        raise RunError(
            f"the local models of round {number} cannot be made anew: clients remembered "
            f"{runner.boundary.stays[0]} and more, and the memories of the round before are not kept"
        )
    before = checkpoints.load(number - 1).server if number > 1 else finished.models.runner.first_server()
    federation = runner.federation
    drawn = draw_clients(config.participation, federation.clients, config.seed, number)
    plan, found = plan_round(config, federation, number, *drawn), {}
    for client in [row["client"] for row in line["clients"]]:
        broadcast = config.method.broadcast(before.seen_by(client), client, number)
        outcome = runner.run(Task(number, client, broadcast, threads=plan[client].threads))
        if outcome.upload is None:
            raise RunError(f"client {client} failed when round {number} was run again: {outcome.failure}")
        found[client] = outcome.upload.state
    return found
