"""The global model's path over the loss landscape (L-DAWA, Fig. 2).

The plane is spanned by the first two principal components of the checkpoints, relative to the last
one (Li et al. 2018, section 7.2). The loss on the plane is the objective's, on a fixed set of views of
images of all clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedssl.errors import RunError
from fedssl.evaluation.loaded import LoadedRun, load_run
from fedssl.rng import torch_rng
from fedssl.rundir import RunDir
from fedssl.state import State, restore

Numbers = NDArray[np.float64]
MARGIN = 0.25  # margin around the path, relative to its extent


@dataclass(frozen=True)
class Plane:
    """A path of points, projected onto its principal plane."""

    path: Numbers  # [points, 2]; the last one is the origin
    axes: Numbers  # [2, dimensions], orthonormal
    explained: float  # share of the path's variance (about its end) in the plane


@dataclass(frozen=True)
class Landscape:
    """Losses on a grid over the plane, and the path with its rounds."""

    rounds: list[int]
    plane: Plane
    xs: Numbers
    ys: Numbers
    losses: Numbers  # [ys, xs]


def plane_through(points: Numbers) -> Plane:
    """Return the two principal directions of `points − last point`."""
    centered = points - points[-1]
    _, sizes, directions = np.linalg.svd(centered, full_matrices=False)
    axes = directions[:2]
    total = float((sizes**2).sum())
    return Plane(centered @ axes.T, axes, float((sizes[:2] ** 2).sum()) / total if total else 1.0)


def landscape(run: str | Path, grid: int = 15, images: int = 512) -> Landscape:
    """Compute losses on a grid × grid plane through a run's checkpoints."""
    directory = RunDir.open(run)
    finished = load_run(directory, {})
    rounds, states = _states(directory, finished)
    layers = _layers(finished)
    plane = plane_through(np.stack([_flat(state, layers) for state in states]))
    xs, ys = (_axis(plane.path[:, axis], grid) for axis in (0, 1))
    loss = _Loss(finished, images)
    end = _flat(states[-1], layers)
    losses = np.array(
        [
            [loss.at(_shaped(end + x * plane.axes[0] + y * plane.axes[1], states[-1], layers)) for x in xs]
            for y in ys
        ]
    )
    return Landscape(rounds, plane, xs, ys, losses)


def _states(directory: RunDir, finished: LoadedRun) -> tuple[list[int], list[State]]:
    """Return the global model before round 1 and at every checkpoint."""
    checkpoints = finished.live.checkpoints
    rounds = checkpoints.rounds()
    if len(rounds) < 2:
        raise RunError(
            f"{directory.path} has {len(rounds)} checkpoint(s), but a trajectory needs at least 2: "
            "train with checkpoint.keep=0 checkpoint.every=1"
        )
    return [0, *rounds], [
        finished.models.runner.first_server().model,
        *(checkpoints.load(number).server.model for number in rounds),
    ]


def _layers(finished: LoadedRun) -> list[str]:
    """Return the trained tensors of the global model, without statistics and counters."""
    runner = finished.models.runner
    return [name for name, _ in runner.model.named_parameters() if name in runner.uploads]


def _flat(state: State, layers: Sequence[str]) -> Numbers:
    return np.concatenate([state[name].double().reshape(-1).numpy() for name in layers])


def _shaped(vector: Numbers, like: State, layers: Sequence[str]) -> State:
    pieces = torch.split(torch.from_numpy(vector).float(), [like[name].numel() for name in layers])
    return {name: piece.view(like[name].shape) for name, piece in zip(layers, pieces, strict=True)}


def _axis(along: Numbers, grid: int) -> Numbers:
    low, high = float(along.min()), float(along.max())
    margin = MARGIN * (high - low) or 1e-3
    return np.linspace(low - margin, high + margin, grid)


class _Loss:
    """The objective on fixed views. BatchNorm uses batch statistics, which match any weights."""

    def __init__(self, finished: LoadedRun, images: int) -> None:
        config, self.runner = finished.trained, finished.models.runner
        self.objective, self.seed = config.objective, config.seed
        train, rng = finished.federation.train, torch_rng(config.seed, "landscape")
        chosen = torch.randperm(len(train), generator=rng)[:images].sort().values
        self.labels = None if train.y is None else train.y[chosen].to(self.runner.device)
        self.views: list[Tensor] = self.runner.views(train.x[chosen], rng, self.runner.device)
        restore(self.runner.model, self.runner.initial)

    @torch.no_grad()
    def at(self, state: State) -> float:
        restore(self.runner.model, state)
        self.runner.model.train()
        rng = torch_rng(self.seed, "landscape", "loss")
        return float(self.objective.loss(self.runner.model, self.views, self.labels, rng))
