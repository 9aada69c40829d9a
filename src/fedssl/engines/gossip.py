"""Training without a server: nodes average their models with their neighbors' (Dec-SSL, §6.1, §B.5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from fedssl.aggregation.rule import is_counter
from fedssl.aggregation.server_optimizer import ServerOptimizer
from fedssl.engines.engine import Engine
from fedssl.engines.loop import RoundLoop
from fedssl.engines.mixing import Graph, Mixing, Topology, among, graph, spectral_gap
from fedssl.engines.round_report import RoundReport
from fedssl.engines.tools import server_tools
from fedssl.errors import ConfigError
from fedssl.methods.method import Aggregate
from fedssl.rng import numpy_rng
from fedssl.state import ServerState, State, Upload

if TYPE_CHECKING:
    from fedssl.config import Config
    from fedssl.data.federation import Federation
    from fedssl.engines.loop import Clients
    from fedssl.engines.memory import MemoryStore
    from fedssl.engines.runner import ClientRunner
    from fedssl.models.model import Model
    from fedssl.privacy.guard import Guard

CHUNK = 1 << 16  # numbers of each model that are mixed at a time, to limit memory

# Alternatives for methods that need a server.
INSTEAD = {"fedema": "; with a fixed method.scaler, or method.divergence=reference-code, it needs none"}


class Gossip(Engine):
    """No server: each node trains its own model and averages it with its neighbors'."""

    like_local: ClassVar[bool] = False
    has_server: ClassVar[bool] = False

    name: str = Field("gossip", description="engine (see `fedssl list engines`)")
    topology: Topology = Field("cycle", description="graph of neighbors")
    edge_probability: float = Field(
        0.7, gt=0, le=1, description="random: probability of an edge; graphs are redrawn until connected"
    )

    @field_validator("edge_probability")
    @classmethod
    def _has_effect(cls, value: float, info: ValidationInfo) -> float:
        if value != cls.model_fields["edge_probability"].default and info.data.get("topology") != "random":
            raise ValueError("has an effect with engine.topology=random only")
        return value

    def clients(self, config: Config, runner: ClientRunner, federation: Federation) -> Clients:
        check(config, runner)
        return super().clients(config, runner, federation)

    def loop(
        self, config: Config, runner: ClientRunner, federation: Federation, clients: Clients
    ) -> RoundLoop:
        rng = numpy_rng(config.seed, "gossip", "graph")
        neighbors = graph(self.topology, federation.clients, self.edge_probability, rng)
        return GossipLoop(
            config, runner.model, federation, clients, runner.memories, runner.guard(), neighbors
        )


def check(config: Config, runner: ClientRunner) -> None:
    """Raise a ConfigError for settings that need a server."""
    method, remedy = config.method, "engine.name=local has a server"
    if method.pools_data:
        raise ConfigError(f"method.name={method.name} has all images in one place: no neighbors; {remedy}")
    if not runner.boundary.travels:
        raise ConfigError(f"method.name={method.name} shares nothing: neighbors have nothing to average")
    if config.aggregation.name != "fedavg" or config.server != ServerOptimizer():
        key = "server.optimizer" if config.aggregation.name == "fedavg" else "aggregation.name"
        raise ConfigError(f"{key} is for a server, and engine.name=gossip has none; {remedy}")
    first = runner.first_server()
    aggregate = method.aggregate(first, 1, server_tools(config, runner.model))
    if first.clusters or type(aggregate) is not Aggregate or method.relays:
        raise ConfigError(
            f"method.name={method.name} needs a server, since engine.name=gossip only averages models"
            f"{INSTEAD.get(method.name, '')}; {remedy}"
        )


class GossipLoop(RoundLoop):
    """Rounds in which every node has its own model and mixes it with its neighbors'."""

    def __init__(
        self,
        config: Config,
        model: Model,
        federation: Federation,
        engine: Clients,
        memories: MemoryStore,
        guard: Guard,
        neighbors: Graph,
    ) -> None:
        super().__init__(config, model, federation, engine, memories, guard)
        self.neighbors = neighbors

    def run(
        self, server: ServerState, start: int, after_round: Callable[[RoundReport, ServerState], bool]
    ) -> ServerState:
        if not server.nodes:  # before round 1: every node starts from the same model
            copies = [{name: value.clone() for name, value in server.model.items()} for _ in self.neighbors]
            server = replace(server, model={}, nodes=copies)
        return super().run(server, start, after_round)

    def aggregate(self, server: ServerState, number: int, report: RoundReport) -> Aggregate:
        return Neighbors(server, self.neighbors, self.tools.parameters, report.values)


class Neighbors(Aggregate):
    """Collects the models of a round, and mixes them at its end.

    Nodes that are absent or fail keep their models; the others mix with the weights of their subgraph.
    """

    def __init__(
        self, server: ServerState, neighbors: Graph, measured: Iterable[str], report: dict[str, float]
    ) -> None:
        self.server, self.neighbors = server, neighbors
        self.measured, self.report = sorted(measured), report
        self.models = list(server.nodes)
        self.active: list[int] = []

    def add(self, upload: Upload) -> dict[str, float]:
        self.models[upload.client] = upload.state
        self.active.append(upload.client)
        return {}

    def finish(self) -> ServerState:
        weights = among(self.neighbors, self.active)
        models = mix_nodes(self.models, weights)
        self.report |= {
            "consensus_distance": consensus_distance(models, self.measured),
            "spectral_gap": spectral_gap(weights),
        }
        return replace(self.server, nodes=models)


@torch.no_grad()
def mix_nodes(models: Sequence[State], weights: Mixing) -> list[State]:
    """Mix models: node i gets Σ_j W_ij·w_j, also of BatchNorm's statistics; of counters the maximum.

    Sums are in double precision. A node without active neighbors keeps its tensors.
    """
    alone = [node for node, own in enumerate(weights) if own[node] == 1.0]
    mixed: list[State] = [dict(model) if node in alone else {} for node, model in enumerate(models)]
    together = [node for node in range(len(models)) if node not in alone]
    share = torch.from_numpy(weights[together][:, together])
    for name in models[0]:
        tensors = [models[node][name] for node in together]
        for node, tensor in zip(together, _mix(tensors, share), strict=True):
            mixed[node][name] = tensor
    return mixed


def _mix(tensors: list[Tensor], share: Tensor) -> list[Tensor]:
    if not tensors:
        return []
    if is_counter(tensors[0]):
        return [
            torch.stack([tensors[other] for other in row.nonzero().flatten().tolist()]).amax(dim=0)
            for row in share
        ]
    flat = [tensor.flatten() for tensor in tensors]
    out = [torch.empty_like(vector) for vector in flat]
    for start in range(0, flat[0].numel(), CHUNK):
        part = slice(start, start + CHUNK)
        block = share @ torch.stack([vector[part] for vector in flat]).double()
        for vector, row in zip(out, block, strict=True):
            vector[part] = row
    return [vector.view(tensor.shape) for vector, tensor in zip(out, tensors, strict=True)]


@torch.no_grad()
def consensus_distance(models: Sequence[Mapping[str, Tensor]], names: Iterable[str]) -> float:
    """The root mean square over nodes of ‖w_i − w̄‖."""
    total = 0.0
    for name in names:
        mean = models[0][name].double()
        for model in models[1:]:
            mean = mean + model[name]
        mean = mean / len(models)
        total += sum(float((model[name] - mean).square().sum()) for model in models)
    return math.sqrt(total / len(models))
