"""FedExP (Jhunjhunwala, Wang, Joshi, ICLR 2023): the more clients disagree, the longer the server's step."""

from __future__ import annotations

from pydantic import Field

from fedssl.aggregation.angles import Comparison
from fedssl.aggregation.fedavg import FedAvg
from fedssl.aggregation.rule import Fold, Rule
from fedssl.aggregation.scaled_sum import SummingFold
from fedssl.state import State, Upload
from fedssl.vectors import flat, square_distance


class FedExP(Rule):
    """w ← w_g + η·(w̄ − w_g) with η = max(1, Σ p_k‖w_k − w_g‖² / (2(‖w̄ − w_g‖² + ε))), p_k ∝ n_k (Eq. 6)."""

    eps: float = Field(1e-3, gt=0, description="ε: keeps the step short where updates cancel out")

    def start(
        self, previous: State, statistics: frozenset[str] = frozenset(), round: int | None = None
    ) -> Fold:
        return ExtrapolatingFold(self.eps, previous, statistics)


class ExtrapolatingFold(SummingFold):
    """FedAvg's sums, and the mean square length of the updates."""

    def __init__(self, eps: float, previous: State, statistics: frozenset[str]) -> None:
        super().__init__(FedAvg(), previous, statistics)
        self.eps = eps
        self._squares = 0.0
        self._images = 0

    def _add(self, upload: Upload) -> Comparison:
        compared = super()._add(upload)
        apart = sum(
            square_distance(own, flat(upload.state[name])) for name, own in self.reference.layers.items()
        )
        self._squares += upload.num_samples * apart
        self._images += upload.num_samples
        return compared

    def _finish(self) -> State:
        mean, layers = super()._finish(), self.reference.layers
        moved = sum(square_distance(own, flat(mean[name])) for name, own in layers.items())
        step = max(1.0, self._squares / self._images / (2 * (moved + self.eps)))
        if step == 1.0:
            return mean
        return {
            name: self.previous[name].to(value).lerp(value, step) if name in layers else value
            for name, value in mean.items()
        }
