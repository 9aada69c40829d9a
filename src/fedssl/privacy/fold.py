"""The server's sum of a round: adds integers and returns the next global model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import PrivateAttr

from fedssl.aggregation.pooling import pairs
from fedssl.aggregation.rule import Fold, Rule, is_counter
from fedssl.aggregation.scaled_sum import ScaledSum
from fedssl.errors import RunError
from fedssl.privacy.grid import Floats
from fedssl.privacy.secure.client import add_noise
from fedssl.privacy.secure.server import Summed
from fedssl.privacy.secure.words import Parcel
from fedssl.privacy.terms import REPORTED, Terms
from fedssl.privacy.update import KEYS, WITHIN, clipped, slack
from fedssl.state import State, Upload

if TYPE_CHECKING:
    from fedssl.aggregation.angles import Comparison

FLOOR = 0.01  # smallest share of its last value to which noise can reduce a variance
WORST = 1e-3  # largest error of rounding that is accepted


class Guarded(Rule):
    """The rule of a run whose uploads are added as integers."""

    _fold: Any = PrivateAttr(None)

    def start(
        self, previous: State, statistics: frozenset[str] = frozenset(), round: int | None = None
    ) -> Fold:
        fold: Fold = self._fold
        return fold


def guarded(fold: Fold) -> Guarded:
    rule = Guarded(name="guarded")
    rule._fold = fold
    return rule


class SumFold(Fold):
    """Base class of both sums. Counters (integer tensors) do not change.

    Args:
        terms: the terms of the run.
        previous: the global model.
        clip: the clipping norm of the round.
        rule: the rule in force.
    """

    def __init__(self, terms: Terms, previous: State, clip: float, rule: ScaledSum) -> None:
        self.terms, self.previous, self.clip, self.rule = terms, previous, clip, rule
        self.report: dict[int, dict[str, Any]] = {}
        self.keys: dict[int, bytes] = {}  # of clients that send masked integers later
        self.grid = terms.grid(clip)
        numbers = len(terms.number_grids())
        self.total = Parcel.zeros(terms.layout.size, numbers, self.grid.bits)
        self.missing_noise = 1.0  # share of the noise's variance that the server has to add

    def add(self, upload: Upload) -> None:
        """Add an upload, or record the keys of a client that sends its integers later."""
        if self.terms.privacy.secure:
            self.keys[upload.client] = bytes(upload.state[KEYS].tolist())
        else:
            self.total.add(bounded_parcel(self.terms, self.terms.layout.flatten(upload.state), self.clip))
            if self.terms.privacy.quantile:
                within = 0.5 if upload.values.pop(WITHIN, 0.0) else -0.5
                self.total.numbers += self.terms.encode_numbers(np.array([within]))
        self.report[upload.client] = {}

    def take(self, summed: Summed) -> None:
        """Use a sum from secure aggregation, which lacks the noise of clients that dropped out."""
        self.total = summed.parcel
        self.missing_noise = 1 - len(summed.counted) / summed.asked
        self.report = {client: {} for client in summed.counted}

    @torch.no_grad()
    def finish(self) -> State:
        """The new global state, which the rule computes from the mean."""
        return self._typed(self.rule.complete(self.previous, self.terms.layout.statistics, self._finish()))

    def _prepared(self) -> State:
        """The previous model as it was before clients took the difference from it."""
        upload = Upload(0, self.previous, 1)
        return self.rule.prepare(self.previous, upload, self.terms.layout.statistics).state

    def _typed(self, state: State) -> State:
        """Names, types and devices of the previous model; its counters."""
        return {
            name: old.clone() if is_counter(old) else state[name].to(old.device, old.dtype)
            for name, old in self.previous.items()
        }

    def _add(self, upload: Upload) -> Comparison | None:
        raise NotImplementedError("uploads are added as integers")


def bounded_parcel(terms: Terms, update: Floats, clip: float) -> Parcel:
    """A client's update as integers whose norm is at most `clip`, rounding included.

    Raises:
        ValueError: if the update is not finite.
    """
    grid = terms.grid(clip)
    room = clip - slack(grid.step, len(update))
    integers = grid.integers(clipped(update, room))
    return Parcel(grid.wrap(integers), np.zeros(len(terms.number_grids()), dtype="<u8"))


class NoisyFold(SumFold):
    """The mean of bounded updates with Gaussian noise.

    The sum is divided by the expected number of clients, because ε does not cover the actual number.

    Args:
        noise_key: the key of the server's noise, 32 bytes.
    """

    def __init__(self, terms: Terms, previous: State, clip: float, rule: ScaledSum, noise_key: bytes) -> None:
        super().__init__(terms, previous, clip, rule)
        self.noise_key = noise_key
        self.next_clip = clip

    def _finish(self) -> State:
        terms, layout = self.terms, self.terms.layout
        if self.missing_noise:
            deviations = noise_in_steps(terms, self.clip)
            add_noise(self.total, **deviations, key=self.noise_key.hex(), share=self.missing_noise)
        if terms.privacy.quantile:
            (within,) = terms.decode_numbers(self.total.numbers)
            self.next_clip = terms.next_clip(self.clip, float(within))
        change = self.grid.decode(self.total.tensors) / terms.per_round
        return layout.unflatten(layout.flatten(self._prepared()) + change)

    @torch.no_grad()
    def finish(self) -> State:
        state = super().finish()
        for _, name in pairs(self.terms.layout.statistics):  # noise must not make a variance vanish
            state[name] = torch.maximum(state[name], FLOOR * self.previous[name])
        return state


def noise_in_steps(terms: Terms, clip: float) -> dict[str, float]:
    """Standard deviation of the noise on the sums of a round, in steps of their grids."""
    numbers = terms.number_grids()
    return {
        "tensors": terms.update_noise * clip / terms.grid(clip).step,
        "numbers": terms.quantile_noise / numbers[0].step if numbers else 0.0,
    }


class WeightedFold(SumFold):
    """The rule's own sum, for clients that have scaled their layers.

    Attributes:
        means: of the values that clients report, over images.
        error: the largest error that rounding can have made in a parameter.
    """

    def __init__(self, terms: Terms, previous: State, clip: float, rule: ScaledSum) -> None:
        super().__init__(terms, previous, clip, rule)
        self.units = terms.units(rule)
        self.means: dict[str, float] = {}
        self.views = 0
        self.error = 0.0

    def _finish(self) -> State:
        layout, previous = self.terms.layout, self._prepared()
        names, numbers = list(layout.shapes), self.terms.decode_numbers(self.total.numbers)
        masses = dict(zip(names, numbers[: len(names)], strict=True))
        self._read_means(numbers[len(names) :])
        change, new = self.grid.decode(self.total.tensors), {}
        for name, part in layout.slices().items():
            if masses[name] <= 0:
                raise RunError(f"secure aggregation: the total mass of {name} is zero")
            self.error = max(self.error, len(self.report) * self.grid.error / masses[name])
            old = previous[name].cpu().double()
            new[name] = old + torch.from_numpy(change[part]).reshape(old.shape) / masses[name]
        if self.error > WORST:
            raise RunError(
                f"secure aggregation: rounding may change a parameter by {self.error:.1g}; set "
                "privacy.bits=64, a lower privacy.bound, or participation.max_images to the largest "
                "number of images of a client"
            )
        return new

    def _read_means(self, numbers: Floats) -> None:
        means = dict(zip(REPORTED, numbers, strict=True))
        images = means.pop("images")
        self.views = round(means.pop("views") * self.terms.images)
        self.means = {name: float(total / images) for name, total in means.items()} if images > 0 else {}


def fold_for(terms: Terms, previous: State, clip: float, rule: ScaledSum, noise_key: bytes) -> SumFold:
    """The sum of a round under the terms of the run."""
    if terms.privacy.by_client:
        return NoisyFold(terms, previous, clip, rule, noise_key)
    return WeightedFold(terms, previous, clip, rule)
