"""Limits on the uploads of a round, relative to those of the other clients.

A single client must not dominate a round:

- It is weighted by at most `participation.max_weight` times the median number of images.
- It is refused if its distance from the global model exceeds `participation.max_change` times both the norm
  of the global model and the median distance of the others. After a round in which the global model was
  hijacked all honest clients are far from it, and the second condition lets them in.
- With `participation.clip`, an update with more than that many times the median norm is clipped.

Uploads that no limit can affect are added at once, so memory does not grow with the number of clients.
From the first upload on that depends on the others, all wait until the last one has arrived.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from fedssl.engines.options import ParticipationConfig
from fedssl.engines.tasks import Outcome
from fedssl.state import State, Upload, distance
from fedssl.vectors import flat, square


@dataclass(frozen=True)
class Change:
    """Distances between an upload and a model."""

    parameters: float
    statistics: float

    @property
    def total(self) -> float:
        return math.hypot(self.parameters, self.statistics)


@dataclass(frozen=True)
class Entry:
    """An upload that has arrived.

    Attributes:
        outcome: the client's outcome, whose upload may be bounded.
        sent: the model closest to the upload among those that the client was sent.
        change: distance of the upload from `sent`, in total, and of parameters and statistics separately.
    """

    outcome: Outcome
    sent: State
    change: Change


class Intake:
    """Receives the uploads of one round.

    Args:
        limits: section `participation` of the config.
        sizes: numbers of images of the round's clients, if the server knows them; else 0.
        statistics: names of running statistics of normalization layers.
        sees_models: whether uploads are models, which can be compared with the sent model. Sums and masked
            uploads are not, and are not limited.
    """

    def __init__(
        self,
        limits: ParticipationConfig,
        sizes: Sequence[int],
        statistics: frozenset[str] = frozenset(),
        sees_models: bool = True,
    ) -> None:
        self.limits, self.statistics, self.sees_models = limits, statistics, sees_models
        self.fewest_images = max(1, min(sizes, default=1))
        self.images: list[int] = []
        self.changes: list[Change] = []
        self.waiting: list[Entry] = []
        self._norms: dict[int, tuple[State, float]] = {}  # by identity of the model, which is kept alive

    def receive(self, outcome: Outcome, sent: Sequence[State]) -> list[Outcome]:
        """Take an outcome with a valid upload.

        Args:
            outcome: the outcome; if it has to wait, its upload is replaced by a copy.
            sent: the models that the client may have trained.

        Returns:
            The outcomes that can be added now: the outcome itself, or none.
        """
        upload = outcome.upload
        assert upload is not None
        if not self.sees_models:
            return [outcome]
        self.images.append(upload.num_samples)
        entry = self._measure(outcome, sent)
        if not (self.waiting or self._depends_on_others(entry)):
            return [outcome]
        outcome.upload = replace(upload, state={name: value.clone() for name, value in upload.state.items()})
        self.waiting.append(entry)
        return []

    def finish(self) -> Iterator[Outcome]:
        """Return the waiting outcomes in order: limited, or refused with the reason."""
        if not self.waiting:
            return
        most = int(self.limits.max_weight * statistics.median_low(self.images))
        longest = Change(
            self.limits.clip * statistics.median_low(change.parameters for change in self.changes),
            self.limits.clip * statistics.median_low(change.statistics for change in self.changes),
        )
        for position, entry in enumerate(self.waiting, start=len(self.images) - len(self.waiting)):
            entry.outcome.failure = self._too_far(entry, position)
            if not entry.outcome.failure:
                self._bound_weight(entry.outcome, most)
                self._clip(entry, longest)
            yield entry.outcome

    def _measure(self, outcome: Outcome, sent: Sequence[State]) -> Entry:
        """Measure the distance of an upload from the sent model, if a limit needs it."""
        upload = outcome.upload
        assert upload is not None
        changes = [Change(0.0, 0.0)]
        if self.limits.max_change or self.limits.clip:
            changes = [self._change(upload, model) for model in sent]
        nearest = min(range(len(changes)), key=lambda place: changes[place].total)
        self.changes.append(changes[nearest])
        return Entry(outcome, sent[nearest], changes[nearest])

    def _change(self, upload: Upload, model: State) -> Change:
        floating = [name for name, value in model.items() if value.is_floating_point()]
        return Change(
            distance(upload.state, model, [name for name in floating if name not in self.statistics]),
            distance(upload.state, model, [name for name in floating if name in self.statistics]),
        )

    def _depends_on_others(self, entry: Entry) -> bool:
        upload, limits = entry.outcome.upload, self.limits
        assert upload is not None
        heavy = limits.max_weight and upload.num_samples > limits.max_weight * self.fewest_images
        return bool(limits.clip or heavy or self._exceeds(entry, self._norm(entry.sent)))

    def _exceeds(self, entry: Entry, unit: float) -> bool:
        return bool(self.limits.max_change and entry.change.total > self.limits.max_change * unit > 0)

    def _too_far(self, entry: Entry, position: int) -> str:
        """Why an upload is refused; empty if it is not. `position` is its order of arrival."""
        norm = self._norm(entry.sent)
        if not self._exceeds(entry, norm):
            return ""
        others = [change.total for place, change in enumerate(self.changes) if place != position]
        if others and not self._exceeds(entry, max(norm, statistics.median_low(others))):
            return ""
        return (
            f"is {entry.change.total / norm:,.1f} global norms from the global model: "
            f"participation.max_change is {self.limits.max_change:g}"
        )

    def _norm(self, model: State) -> float:
        if not self.limits.max_change:
            return 0.0
        if id(model) not in self._norms:
            total = sum(square(flat(value)) for value in model.values() if value.is_floating_point())
            self._norms[id(model)] = model, math.sqrt(total)
        return self._norms[id(model)][1]

    def _bound_weight(self, outcome: Outcome, most: int) -> None:
        """Limit the number of images of a client; both numbers are logged."""
        upload = outcome.upload
        assert upload is not None
        if self.limits.max_weight and upload.num_samples > most:
            upload.values["claimed_images"] = upload.num_samples
            upload.num_samples = max(1, most)

    def _clip(self, entry: Entry, longest: Change) -> None:
        """Clip the parameters and the statistics of an update, each to its own limit."""
        upload, sent, own = entry.outcome.upload, entry.sent, entry.change
        assert upload is not None
        if not self.limits.clip:
            return
        kept = [
            shorten(upload.state, sent, sent.keys() - self.statistics, own.parameters, longest.parameters),
            shorten(upload.state, sent, sent.keys() & self.statistics, own.statistics, longest.statistics),
        ]
        if min(kept) < 1:
            upload.values["clipped_to"] = min(kept)


@torch.no_grad()
def shorten(state: State, sent: State, names: Iterable[str], length: float, longest: float) -> float:
    """Replace w by w_sent + share·(w − w_sent), for the floating tensors among the names.

    Returns:
        The share of the update that is kept: 1 if it is not longer than `longest`.
    """
    if length <= longest:
        return 1.0
    for name in names:
        if sent[name].is_floating_point():
            state[name] = sent[name] + longest / length * (state[name] - sent[name])
    return longest / length
