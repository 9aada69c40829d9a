"""Aggregation into several cluster models (FeatARC)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedssl.aggregation.rule import Fold
from fedssl.errors import RunError
from fedssl.methods.method import Aggregate, ServerTools
from fedssl.state import ServerState, State, Upload


class Clusters(Aggregate):
    """Aggregates the members of each cluster; a cluster without members keeps its model (line 18)."""

    def __init__(self, server: ServerState, round: int, tools: ServerTools) -> None:
        self.server, self.round, self.tools = server, round, tools
        self.folds: dict[int, Fold] = {}

    def add(self, upload: Upload) -> dict[str, Any]:
        number = upload.values.get("cluster", -1)
        if number not in range(len(self.server.clusters)):
            raise RunError(
                f"client {upload.client} chose cluster {number}, but there are {len(self.server.clusters)}"
            )
        return self.fold_into(int(number), upload)

    def fold_into(self, cluster: int, upload: Upload) -> dict[str, Any]:
        if cluster not in self.folds:
            previous = self.server.clusters[cluster]
            self.folds[cluster] = self.tools.rule.start(previous, self.tools.statistics, self.round)
        self.folds[cluster].add(upload)
        return self.folds[cluster].report[upload.client]

    def finish(self) -> ServerState:
        clusters, memory = list(self.server.clusters), dict(self.server.memory)
        for cluster, fold in sorted(self.folds.items()):
            prefix = f"cluster-{cluster}/"
            own = {name[len(prefix) :]: value for name, value in memory.items() if name.startswith(prefix)}
            clusters[cluster], own = self.tools.optimizer.step(
                clusters[cluster], fold.finish(), own, self.round, self.tools.statistics
            )
            memory |= {prefix + name: value for name, value in own.items()}
        return replace(self.server, clusters=clusters, memory=memory)


class FirstClusters(Clusters):
    """The first round with C equal models, in which the server assigns clients to clusters.

    The updates, statistics included, are clustered by their direction (Ward's method). Clusters are numbered
    by their lowest client id, so the result does not depend on the order of arrival.
    """

    def __init__(self, server: ServerState, round: int, tools: ServerTools) -> None:
        super().__init__(server, round, tools)
        self.waiting: list[tuple[Upload, State]] = []  # the loop clears an upload's tensors

    def add(self, upload: Upload) -> dict[str, Any]:
        self.waiting.append((upload, upload.state))
        return {}

    def finish(self) -> ServerState:
        self.waiting.sort(key=lambda pair: pair[0].client)
        assigned = by_direction([self._change(state) for _, state in self.waiting], len(self.server.clusters))
        for cluster, (upload, state) in zip(assigned, self.waiting, strict=True):
            whole = Upload(upload.client, state, upload.num_samples, upload.loss)
            upload.values |= {**self.fold_into(cluster, whole), "cluster": cluster}
        return super().finish()

    def _change(self, state: State) -> Tensor:
        """The update of an upload as one vector."""
        first = self.server.clusters[0]
        names = [name for name, tensor in first.items() if tensor.is_floating_point()]
        return torch.cat([(state[name] - first[name]).flatten() for name in names])


def by_direction(vectors: Sequence[Tensor], clusters: int) -> list[int]:
    """Cluster unit vectors by Ward's method; clusters are numbered in order of appearance."""
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(vectors) <= clusters:
        return list(range(len(vectors)))
    distances = [
        math.sqrt(max(0.0, 2 - 2 * float(F.cosine_similarity(a.double(), b.double(), dim=0))))
        for a, b in itertools.combinations(vectors, 2)
    ]
    found = fcluster(linkage(np.array(distances), "ward"), clusters, "maxclust").tolist()
    order = list(dict.fromkeys(found))
    return [order.index(number) for number in found]
