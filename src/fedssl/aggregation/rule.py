"""The base class of aggregation rules, which fold uploads in one by one.

Tensors are of three kinds. *Layers* are parameters: a layer is one named tensor, and rules define how layers
are aggregated. *Statistics* (BatchNorm's running mean and variance, named by the caller, who knows the module
types) are averaged by number of samples. Of *counters* (integer tensors) the largest is kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedssl.aggregation.angles import Comparison, Reference, mean_angle
from fedssl.errors import RunError
from fedssl.options import Choice
from fedssl.state import State, Upload


class Rule(Choice):
    """Computes the next global state from the previous one and the uploads of a round."""

    # Whether the rule changes the norm of weights, so that averaged normalization statistics do not fit.
    scales_weights: ClassVar[bool] = False
    # Whether the server trains on its own images in every round, to compare uploads with the result.
    needs_root: ClassVar[bool] = False

    def start(
        self, previous: State, statistics: frozenset[str] = frozenset(), round: int | None = None
    ) -> Fold:
        """Start to aggregate a round.

        Args:
            previous: the global state that the clients received.
            statistics: names of the normalization statistics.
            round: number of the round, from 1; None: no warm-up.

        Returns:
            A fold, to which uploads are added.
        """
        raise TypeError(f"{type(self).__name__} does not define start")

    def anchored(self, root: State) -> Rule:
        """The rule of one round, where it needs the server's own update.

        Args:
            root: the model that the server has trained on its own images, from the global model.
        """
        raise TypeError(f"{type(self).__name__} does not define anchored")

    def on_client(
        self, previous: State, upload: Upload, statistics: frozenset[str], round: int | None = None
    ) -> Upload:
        """The client's part of the rule, applied to an upload before it is sent; by default nothing."""
        return upload

    def __call__(
        self,
        previous: State,
        uploads: Iterable[Upload],
        statistics: frozenset[str] = frozenset(),
        round: int | None = None,
    ) -> State:
        """Aggregate the uploads of one round.

        Args:
            previous: the global state that the clients received, by name.
            uploads: one upload for each client, in any order.
            statistics: names of the normalization statistics in the state, which are averaged by number of
                samples whatever the rule.
            round: number of the round, from 1, for rules that warm up; None: without warm-up.

        Returns:
            The next global state, with the names, types and devices of the previous one.
        """
        fold = self.start(previous, statistics, round)
        for upload in sorted(uploads, key=lambda upload: upload.client):
            fold.add(upload)
        return fold.finish()


class Fold(ABC):
    """Accumulates the uploads of a round. Its inputs are never changed or returned."""

    def __init__(self, previous: State, statistics: frozenset[str]) -> None:
        self.previous, self.statistics = previous, statistics
        self.reference = Reference(previous, statistics)
        # By client: `angle`, δ of the whole model; `angles`, that of each layer; `layer_angle`, their mean.
        self.report: dict[int, dict[str, Any]] = {}
        self.after: Callable[[State], State] = lambda tensors: tensors  # applied to the result
        self._counters: State = {}
        self._finished = False

    @torch.no_grad()
    def add(self, upload: Upload) -> None:
        """Add one upload. The order must be that of client ids, for reproducible rounding."""
        self._still_open()
        if upload.client in self.report:
            raise ValueError(f"client {upload.client} was added before")
        check(self.previous, upload.state, f"upload of client {upload.client}")
        compared = self._add(upload)
        for name, tensor in upload.state.items():
            if is_counter(tensor):
                known, tensor = self._counters.get(name), tensor.to(self.previous[name].device)
                self._counters[name] = tensor.clone() if known is None else torch.maximum(known, tensor)
        self.report[upload.client] = {} if compared is None else _angles(compared)

    @torch.no_grad()
    def finish(self) -> State:
        """Compute the new global state, with the names, types and devices of the previous one."""
        self._still_open()
        if not self.report:
            raise RunError("cannot aggregate a round without uploads")
        self._finished = True
        tensors = {**self.after(self._finish()), **self._counters}
        return {name: tensors[name].to(old.device, old.dtype) for name, old in self.previous.items()}

    def _still_open(self) -> None:
        if self._finished:
            raise ValueError("the fold is finished: start a new one")

    @abstractmethod
    def _add(self, upload: Upload) -> Comparison | None:
        """Add the floating tensors of an upload; returns a comparison with the global ones, if possible."""

    @abstractmethod
    def _finish(self) -> State:
        """The floating tensors of the new global state."""


def _angles(compared: Comparison) -> dict[str, Any]:
    return {
        "angle": compared.angle,
        "layer_angle": mean_angle(compared.angles),
        "angles": {name: round(angle, 7) for name, angle in compared.angles.items()},
    }


def is_counter(tensor: Tensor) -> bool:
    return not tensor.is_floating_point()


def sum_type(tensor: Tensor) -> torch.dtype:
    """The type of sums of such tensors: at least float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def check(previous: Mapping[str, Tensor], state: Mapping[str, Tensor], what: str) -> None:
    """Raise a ValueError that names the tensor unless both have the same names, shapes and kinds."""
    for name in dict.fromkeys([*previous, *state]):
        if name not in state or name not in previous:
            raise ValueError(f"{what}: tensor {name} is {'missing' if name in previous else 'not expected'}")
        if state[name].shape != previous[name].shape:
            raise ValueError(
                f"{what}: {name} has shape {tuple(state[name].shape)}, not {tuple(previous[name].shape)}"
            )
        if is_counter(state[name]) != is_counter(previous[name]):
            raise ValueError(f"{what}: {name} is {state[name].dtype}, not {previous[name].dtype}")
