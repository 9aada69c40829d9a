"""FLTrust: uploads are weighted by their agreement with the server's update (Cao et al. 2021, §IV).

The server trains on a trusted *root set*: the images that `data.holdout` keeps from the clients of a
simulation, or the server's own images (`data.root`) where the clients are at sites.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import PrivateAttr
from torch import Tensor

from fedssl.aggregation.angles import Comparison
from fedssl.aggregation.rule import Fold, Rule, sum_type
from fedssl.errors import RunError
from fedssl.state import State, Upload
from fedssl.vectors import flat, square


class FLTrust(Rule):
    """Updates scaled to the length of the server's own, weighted by max(0, cosine with it).

    w ← w_g + Σ s_k·(‖g_0‖/‖g_k‖)·g_k / Σ s_k with s_k = max(0, cos(g_k, g_0)). Parameters and normalization
    statistics have separate updates, cosines and lengths; a client is weighted by the smaller of its two
    cosines, and updates of statistics are only shortened, so that variances stay positive.
    """

    needs_root: ClassVar[bool] = True

    _root: State | None = PrivateAttr(None)

    def anchored(self, root: State) -> FLTrust:
        rule = self.model_copy()
        rule._root = root
        return rule

    def start(
        self, previous: State, statistics: frozenset[str] = frozenset(), round: int | None = None
    ) -> Fold:
        if self._root is None:
            raise RunError("fltrust needs the server's own update: rule.anchored(state)")
        return TrustFold(previous, statistics, self._root)


class TrustFold(Fold):
    """Sums updates weighted by trust; memory does not grow with the number of clients."""

    def __init__(self, previous: State, statistics: frozenset[str], root: State) -> None:
        super().__init__(previous, statistics)
        floating = {name: old for name, old in previous.items() if old.is_floating_point()}
        kinds = ([name for name in floating if name not in statistics], sorted(floating.keys() & statistics))
        self.kinds = [names for names in kinds if names]
        self.root = [_update(root, previous, names) for names in self.kinds]
        self.sums = [torch.zeros_like(update) for update in self.root]
        self.total = 0.0

    def _add(self, upload: Upload) -> Comparison:
        updates = [_update(upload.state, self.previous, names) for names in self.kinds]
        trust = min(_cosine(own, root) for own, root in zip(updates, self.root, strict=True))
        compared = self.reference.compare(upload.state)
        if trust <= 0:
            return compared
        self.total += trust
        for place, (update, root) in enumerate(zip(updates, self.root, strict=True)):
            length = (square(root) / square(update)) ** 0.5 if square(update) else 0.0
            shorten_only = self.kinds[place][0] in self.statistics
            self.sums[place].add_(update, alpha=trust * (min(1.0, length) if shorten_only else length))
        return compared

    def _finish(self) -> State:
        """Return the new state; if all weights are zero, the global model does not change."""
        new = {}
        for names, total in zip(self.kinds, self.sums, strict=True):
            parts = torch.split(total, [self.previous[name].numel() for name in names])
            for name, part in zip(names, parts, strict=True):
                old = self.previous[name]
                change = (
                    part.view(old.shape) / self.total
                    if self.total
                    else torch.zeros_like(part.view(old.shape))
                )
                new[name] = old.to(sum_type(old)) + change
        return new


def _update(state: State, previous: State, names: list[str]) -> Tensor:
    return torch.cat([flat(state[name].to(previous[name].device)) - flat(previous[name]) for name in names])


def _cosine(own: Tensor, root: Tensor) -> float:
    """Return the cosine of two updates; 0 if one of them is zero."""
    length = (square(own) * square(root)) ** 0.5
    return float(torch.dot(own.double(), root.double())) / length if length else 0.0
