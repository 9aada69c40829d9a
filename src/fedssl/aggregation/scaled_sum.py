"""The base of all rules except the robust ones: a scale per client and layer, then a sum.

    new[l] = Σ_k mass_k[l] · factor_k[l] · w_k[l] / Σ_k mass_k[l]

FedAvg has factor 1 and mass n_k; L-DAWA has factor δ_k and mass 1. Factor and mass depend on the
global model and on one client only, so that a client can scale its own layers before it uploads
them, and the server only sums (see secure.py). Masses are stored as logarithms, since softmax(−L) needs
e^−L for any L, and the inverse of a zero distance is infinite.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from fedssl.aggregation.angles import Comparison, Reference
from fedssl.aggregation.pooling import second_moments, variances
from fedssl.aggregation.rule import Fold, Rule, check, is_counter, sum_type
from fedssl.state import State, Upload

# Sums are relative to the mass of the first client, and rescaled only if a mass exceeds it by e^40: the
# precision of floats does not depend on their scale.
REACH = 40.0


class Weight(NamedTuple):
    """The weight of one client's tensor."""

    factor: float
    log_mass: float


class ScaledSum(Rule):
    """A rule that is defined by the weight of each client's layers."""

    client_side: bool = Field(
        False, description="let clients scale their layers, so that the server only sums (secure aggregation)"
    )
    statistics: Literal["mean", "scaled", "pooled"] = Field(
        "mean",
        description="BatchNorm's running statistics. mean: averaged by number of images; scaled: weighted "
        "and scaled by the rule, like layers; pooled: those of all images together, with a variance that "
        "includes the differences between the clients' means",
    )

    def known(self, upload: Upload) -> Weight | None:
        """The weight of every layer of a client, if it does not depend on the global model."""
        return None

    def weight(self, layer: str, compared: Comparison, upload: Upload) -> Weight:
        """The weight of one layer of a client."""
        known = self.known(upload)
        if known is None:
            raise TypeError(f"{type(self).__name__} does not define weight")
        return known

    def weights(self, compared: Comparison, upload: Upload) -> dict[str, Weight]:
        """The weight of each floating tensor: of layers by the rule, of statistics by `statistics`."""
        average = by_samples(upload)
        ruled = self.statistics == "scaled"
        return {
            name: self.weight(name, compared, upload) if ruled or name in compared.angles else average
            for name, tensor in upload.state.items()
            if not is_counter(tensor)
        }

    def prepare(self, previous: State, upload: Upload, statistics: frozenset[str]) -> Upload:
        """The upload to sum: unchanged, unless variances are pooled."""
        if self.statistics != "pooled":
            return upload
        return replace(upload, state=second_moments(upload.state, previous, statistics))

    def complete(self, previous: State, statistics: frozenset[str], mean: State) -> State:
        """Compute the new global tensors from the weighted means of what was summed."""
        return variances(mean, previous, statistics) if self.statistics == "pooled" else mean

    def scale(
        self,
        previous: State,
        upload: Upload,
        statistics: frozenset[str] = frozenset(),
        reference: float = 0.0,
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Scales and masses of a client's tensors; the new global ones are Σ scale·w / Σ mass.

        Args:
            previous: the global state that the client received.
            upload: the client's upload.
            statistics: names of the normalization statistics.
            reference: subtracted from the logarithm of every mass of a layer; the same for all clients of a
                round. For masses e^−L choose minus a typical loss.
        """
        check(previous, upload.state, f"upload of client {upload.client}")
        weights = self.weights(Reference(previous, statistics).compare(upload.state), upload)
        masses = {}
        for name, weight in weights.items():
            by_rule = self.statistics == "scaled" or name not in statistics
            log_mass = weight.log_mass - (reference if by_rule else 0.0)
            if math.isfinite(log_mass) and abs(log_mass) > REACH:
                raise ValueError(
                    f"client {upload.client}: the mass of {name} is e^{log_mass:.0f}, which exceeds the "
                    f"range of a sum of floats: choose a reference near {weight.log_mass:.0f}"
                )
            masses[name] = math.exp(min(REACH, log_mass))
        return {name: masses[name] * weight.factor for name, weight in weights.items()}, masses

    def start(
        self, previous: State, statistics: frozenset[str] = frozenset(), round: int | None = None
    ) -> Fold:
        fold: Fold
        if self.client_side:
            from fedssl.aggregation.secure import SumOnly

            fold = SumOnly(previous, statistics)
        else:
            fold = SummingFold(self.at(round), previous, statistics)
        fold.after = partial(self.at(round).complete, previous, statistics)
        return fold

    def on_client(
        self, previous: State, upload: Upload, statistics: frozenset[str], round: int | None = None
    ) -> Upload:
        from fedssl.aggregation.secure import scaled

        if not self.client_side:
            return upload
        rule = self.at(round)
        return scaled(rule, previous, rule.prepare(previous, upload, statistics), statistics)

    def at(self, round: int | None) -> ScaledSum:
        """The rule in force in a round."""
        return self


class SummingFold(Fold):
    """Accumulates one sum per tensor, so that memory does not grow with the number of uploads."""

    def __init__(self, rule: ScaledSum, previous: State, statistics: frozenset[str]) -> None:
        super().__init__(previous, statistics)
        self.rule = rule
        self._sums = {name: Sum(old) for name, old in previous.items() if not is_counter(old)}

    def _add(self, upload: Upload) -> Comparison:
        upload = self.rule.prepare(self.previous, upload, self.statistics)
        known = self.rule.known(upload)
        if known is None:
            compared = self.reference.compare(upload.state)
            rest = self.rule.weights(compared, upload)
        else:  # add layers piece by piece, while they are in cache for the comparison
            layers = self.reference.layers
            average = known if self.rule.statistics == "scaled" else by_samples(upload)
            rest = dict.fromkeys(self._sums.keys() - layers.keys(), average)
            scales = {name: self._sums[name].weigh(known) for name in layers}
            compared = self.reference.compare(
                upload.state, lambda name, part, piece: self._sums[name].add(part, scales[name], piece)
            )
        for name, weight in rest.items():
            total = self._sums[name]
            total.add(upload.state[name].reshape(-1), total.weigh(weight))
        return compared

    def _finish(self) -> State:
        return {name: total.mean() for name, total in self._sums.items()}


class Sum:
    """Σ mass·factor·w and Σ mass of one tensor, both relative to e^reference."""

    def __init__(self, like: Tensor) -> None:
        self._shape = like.shape
        self._total = torch.zeros(like.numel(), dtype=sum_type(like), device=like.device)
        self._mass = 0.0
        self._reference: float | None = None

    def weigh(self, weight: Weight) -> float:
        """Add a client's mass; returns the scale of its tensor in the sum."""
        if self._reference is None:
            self._reference = weight.log_mass
        elif weight.log_mass > self._reference + REACH:
            shrink = _ratio(self._reference, weight.log_mass)
            self._total.mul_(shrink)
            self._mass *= shrink
            self._reference = weight.log_mass
        mass = _ratio(weight.log_mass, self._reference)
        self._mass += mass
        return mass * weight.factor

    def add(self, part: Tensor, scale: float, piece: slice = slice(None)) -> None:
        """Add one client's tensor, flat, or a piece of it."""
        self._total[piece].add_(part.to(self._total.device), alpha=scale)

    def mean(self) -> Tensor:
        mean = self._total if self._mass == 1.0 else self._total.div_(self._mass)
        return mean.view(self._shape)


def by_samples(upload: Upload) -> Weight:
    """The weight of a client in a mean over samples."""
    return Weight(1.0, log_samples(upload))


def log_samples(upload: Upload) -> float:
    """The mass of FedAvg: the number of samples."""
    if upload.num_samples < 0:
        raise ValueError(f"client {upload.client}: num_samples is {upload.num_samples}")
    return math.log(upload.num_samples) if upload.num_samples else -math.inf


def log_likelihood(upload: Upload) -> float:
    """The mass of Loss: e^−L, so that masses over their sum are softmax(−L)."""
    if not math.isfinite(upload.loss):
        raise ValueError(f"client {upload.client}: loss is {upload.loss}")
    return -upload.loss


def _ratio(log_mass: float, reference: float) -> float:
    """e^(log_mass − reference), where two infinite masses are equal."""
    return 1.0 if log_mass == reference else math.exp(log_mass - reference)
