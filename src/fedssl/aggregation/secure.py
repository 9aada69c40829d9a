"""Scaled sums with the scaling on the clients, so that the server only sums.

Secure aggregation reveals only the sum of what clients send. A client needs the global model, its own model
and the rule; the masses are sent with its numbers.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fedssl.aggregation.angles import Comparison
from fedssl.aggregation.rule import Fold, is_counter, sum_type
from fedssl.aggregation.scaled_sum import ScaledSum
from fedssl.state import State, Upload

MASS = "mass/"  # prefix of a tensor's name in the numbers of an upload


@torch.no_grad()
def scaled(
    rule: ScaledSum,
    previous: State,
    upload: Upload,
    statistics: frozenset[str] = frozenset(),
    reference: float = 0.0,
) -> Upload:
    """Scale a client's upload on the client; `reference` is that of `ScaledSum.scale`.

    Infinite masses (`euc`: a layer that training did not change) become e^40. For a rule with warm-up, pass
    `rule.at(round)`.
    """
    scales, masses = rule.scale(previous, upload, statistics, reference)
    state = {
        name: tensor.clone() if is_counter(tensor) else tensor.to(sum_type(previous[name])) * scales[name]
        for name, tensor in upload.state.items()
    }
    return replace(
        upload, state=state, values=upload.values | {MASS + name: mass for name, mass in masses.items()}
    )


class SumOnly(Fold):
    """The server's part: sums of scaled tensors, divided by the sums of their masses.

    Of counters, the largest is kept.
    """

    def __init__(self, previous: State, statistics: frozenset[str] = frozenset()) -> None:
        super().__init__(previous, statistics)
        self._sums: State = {}
        self._masses: dict[str, float] = {}

    def _add(self, upload: Upload) -> Comparison | None:
        """Add scaled tensors; angles cannot be measured, since the server does not see a client's weights."""
        names = [name for name, tensor in upload.state.items() if not is_counter(tensor)]
        missing = [name for name in names if MASS + name not in upload.values]
        if missing:
            raise ValueError(
                f"upload of client {upload.client}: no mass of {missing[0]}, so it was not scaled"
            )
        for name in names:
            tensor, mass = upload.state[name], upload.values.pop(MASS + name)
            self._masses[name] = self._masses.get(name, 0.0) + mass
            if name in self._sums:
                self._sums[name].add_(tensor)
            else:
                self._sums[name] = tensor.to(self.previous[name].device).clone()
        return None

    def _finish(self) -> State:
        return {name: tensor / self._masses[name] for name, tensor in self._sums.items()}
