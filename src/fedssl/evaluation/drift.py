"""Distances of local models from their mean, from their start and from each other (Dec-SSL, §B.3).

d_w is the sum over layers of the L2 norm of the difference of their weights; a layer is a parameter of the
backbone. The paper reports d_w between the *mean of the local models* and a local one: `from_mean`.
metrics.jsonl logs d_w between the model that a client received and the one it uploads: `from_received`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedssl.engines.checkpoint import Checkpoints
from fedssl.engines.loop import draw_clients, plan_round
from fedssl.engines.tasks import Task
from fedssl.errors import RunError
from fedssl.evaluation.loaded import LoadedRun, load_run
from fedssl.evaluation.protocol import Protocol
from fedssl.rundir import RunDir
from fedssl.state import ServerState, State, layer_distances
from fedssl.threads import with_threads


class Drift(Protocol):
    """d_w of the last round's local models: from their mean (the paper's), the received model, each other."""

    def evaluate(self, run: LoadedRun) -> dict[str, Any]:
        found = distances(last_round(run))
        means = {
            kind: sum(row["d_w"] for row in rows) / len(rows) if rows else 0.0
            for kind, rows in found.items()
            if isinstance(rows, list)
        }
        return {"protocol": "drift", "round": found["round"], **means}


@dataclass(frozen=True)
class LocalModels:
    """The local models of a run's last round, and the models that they were aggregated into.

    Attributes:
        finished: the run.
        round: number of its last round.
        rows: the clients of the round, as in metrics.jsonl.
        local: the local model of each client.
        merged: the aggregate that each client took part in.
    """

    finished: LoadedRun
    round: int
    rows: list[dict[str, Any]]
    local: dict[int, State]
    merged: dict[int, State]

    @property
    def layers(self) -> list[str]:
        """Parameters of the backbone that the clients share."""
        return self.finished.models.runner.backbone

    def means(self) -> dict[int, State]:
        """For each client, the mean of the local models (of its cluster), weighted by images."""
        found: dict[int, State] = {}
        for cluster in {row.get("cluster", 0) for row in self.rows}:
            members = [row for row in self.rows if row.get("cluster", 0) == cluster]
            mean = {name: self._mean(name, members) for name in self.layers}
            found |= {row["client"]: mean for row in members}
        return found

    def _mean(self, name: str, members: list[dict[str, Any]]) -> Tensor:
        total = sum(row["images"] for row in members)
        shares = [self.local[row["client"]][name].double() * (row["images"] / total) for row in members]
        return torch.stack(shares).sum(dim=0).float()


def drift(run: str | Path) -> dict[str, Any]:
    """d_w of the local models of the last round of a run, in total and by layer.

    Args:
        run: the run's folder.

    Returns:
        `round`, and rows with `d_w` under four names. `from_mean`: every client's model from the mean of all
        (the paper's definition). `from_received`: from the model it started the round with. `from_global`:
        from the model after aggregation. `between`: every pair of clients.
    """
    return distances(local_models(run))


def distances(found: LocalModels) -> dict[str, Any]:
    """Compute the distances that `drift` returns."""
    means = found.means()
    return {
        "round": found.round,
        "from_mean": [_row({"client": c}, means[c], own, found.layers) for c, own in found.local.items()],
        "from_received": [{"client": row["client"], "d_w": row["drift"]} for row in found.rows],
        "from_global": [
            _row({"client": c}, found.merged[c], own, found.layers) for c, own in found.local.items()
        ],
        "between": [
            _row({"clients": [a, b]}, found.local[a], found.local[b], found.layers)
            for a, b in itertools.combinations(found.local, 2)
        ],
    }


def _row(who: dict[str, Any], a: State, b: State, layers: list[str]) -> dict[str, Any]:
    apart = layer_distances(a, b, layers)
    return {**who, "d_w": sum(apart.values()), "layers": apart}


def local_models(run: str | Path) -> LocalModels:
    """Load the models that clients uploaded in the last round of a run."""
    with with_threads(0):
        return last_round(load_run(RunDir.open(run), {}))


def last_round(finished: LoadedRun) -> LocalModels:
    """Load the models that clients uploaded in the last round.

    They are on disk if the method's clients keep their models. Otherwise the round is repeated from the
    checkpoint before it, which gives the same bits.
    """
    if not finished.models.runner.backbone:
        raise RunError(f"method {finished.trained.method.name} shares no encoder to drift from")
    checkpoints = finished.live.checkpoints
    number = checkpoints.rounds()[-1]
    line = next(line for line in finished.directory.metrics() if line["round"] == number)
    local = _remembered(finished, line) or _run_again(finished, checkpoints, number, line)
    merged = {
        row["client"]: _model_of(finished.server, int(row.get("cluster", row["client"])))
        for row in line["clients"]
    }
    return LocalModels(finished, number, line["clients"], local, merged)


def _model_of(server: ServerState, number: int) -> State:
    """The one global model, or the cluster's (FeatARC), or the node's (gossip)."""
    return server.states[number] if len(server.states) > 1 else server.model


def _remembered(finished: LoadedRun, line: dict[str, Any]) -> dict[int, State]:
    """Local models from the clients' memories; empty if these do not contain them."""
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
        raise RunError(f"cannot repeat round {number} for its local models: the images are at the sites")
    if number > 1 and number - 1 not in checkpoints.rounds():
        raise RunError(
            f"repeating round {number} for its local models needs the checkpoint of round {number - 1}, but "
            f"only {checkpoints.rounds()} exist: train with checkpoint.every=1 checkpoint.keep=2"
        )
    if runner.boundary.stays:
        raise RunError(
            f"cannot repeat round {number} for its local models: clients keep private tensors "
            f"({runner.boundary.stays[0]}, …), and those of the round before are not stored"
        )
    before = checkpoints.load(number - 1).server if number > 1 else finished.models.runner.first_server()
    federation = runner.federation
    drawn = draw_clients(config.participation, federation.clients, config.seed, number)
    plan, found = plan_round(config, federation, number, *drawn), {}
    for client in [row["client"] for row in line["clients"]]:
        broadcast = config.method.broadcast(before.seen_by(client), client, number)
        outcome = runner.run(Task(number, client, broadcast, threads=plan[client].threads))
        if outcome.upload is None:
            raise RunError(f"client {client} failed when round {number} was repeated: {outcome.failure}")
        found[client] = outcome.upload.state
    return found
