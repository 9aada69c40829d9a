"""Converts a client's upload into what it sends when privacy settings are on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch

from fedssl.aggregation.angles import Reference
from fedssl.aggregation.fedavg import FedAvg
from fedssl.aggregation.scaled_sum import ScaledSum
from fedssl.privacy.grid import Floats
from fedssl.privacy.terms import LARGEST_REPORTED, REPORTED, Terms
from fedssl.state import State, Upload

KEYS = "public keys"  # the one tensor of an upload whose integers follow, masked
WITHIN = "privacy/within"  # whether the update was shorter than the clipping norm
PUBLIC = ("epsilon", "epsilon_next", "memory_lost")  # values that do not depend on images


# --- client-level differential privacy --------------------------------------------------------------


@torch.no_grad()
def bounded_update(
    terms: Terms, rule: ScaledSum, previous: State, upload: Upload, clip: float
) -> tuple[Floats, bool]:
    """Clip a client's update to `clip`; also return whether it was shorter already.

    Args:
        terms: the terms of the run.
        rule: the rule in force: FedAvg, or one that scales a client's layers.
        previous: the model that the client received.
        upload: the model that it has trained.
        clip: the clipping norm.

    Returns:
        The difference from the received model as a vector. All clients have equal weight.
    """
    layout = terms.layout
    own, old = _prepared(terms, rule, previous, upload)
    if not isinstance(rule, FedAvg):
        weights = rule.weights(Reference(previous, layout.statistics).compare(own), upload)
        own = {name: own[name] * weights[name].factor for name in layout.shapes}
    update = layout.flatten(own) - layout.flatten(old)
    norm = float(np.linalg.norm(update))
    return clipped(update, clip), norm <= clip


def _prepared(terms: Terms, rule: ScaledSum, previous: State, upload: Upload) -> tuple[State, State]:
    """The tensors that are summed in place of the trained model, and those they are compared with."""
    statistics = terms.layout.statistics
    received = replace(upload, state=previous)
    return (
        rule.prepare(previous, upload, statistics).state,
        rule.prepare(previous, received, statistics).state,
    )


def clipped(update: Floats, clip: float) -> Floats:
    """Clip a vector to the norm `clip`. Values that are not finite stay so."""
    norm = float(np.linalg.norm(update))
    return update if norm <= clip else update * (clip / norm)


def slack(step: float, size: int) -> float:
    """The largest increase of a vector's norm when its numbers are rounded to multiples of a step."""
    return step / 2 * math.sqrt(size)


def withheld(upload: Upload, state: State, values: Mapping[str, float] | None = None) -> Upload:
    """The upload without the values that depend on its images: their number, the loss, distances."""
    public = {name: upload.values[name] for name in PUBLIC if name in upload.values}
    return replace(upload, state=state, num_samples=1, loss=0.0, values={**public, **(values or {})})


# --- secure aggregation without noise -----------------------------------------------------------------


@torch.no_grad()
def weighted_update(
    terms: Terms, rule: ScaledSum, previous: State, upload: Upload
) -> tuple[Floats, dict[str, float]]:
    """A client's difference from the received model, times its mass, and its masses.

    The new model is the received one plus Σ mass·(factor·w_k − w) / Σ mass: what the rule computes from
    individual uploads. Differences are smaller than weights, and so is their rounding error.
    """
    layout, units = terms.layout, terms.units(rule)
    states = _prepared(terms, rule, previous, upload)
    scales, masses = rule.scale(previous, replace(upload, state=states[0]), layout.statistics)
    vector = np.empty(layout.size)
    for name, part in layout.slices().items():
        own, old = (state[name].reshape(-1).cpu().double().numpy() for state in states)
        vector[part] = (scales[name] * own - masses[name] * old) / units[name]
    return vector, {name: masses[name] / units[name] for name in layout.shapes}


def reported_values(terms: Terms, upload: Upload, views: int) -> list[float]:
    """Numbers for metrics.jsonl, weighted so that their sums are means over images."""
    images = upload.num_samples / terms.images
    numbers = {"loss": upload.loss, **upload.values}
    found = {"images": images, "views": views / terms.images}
    for name in REPORTED[2:]:
        found[name] = images * float(numbers.get(name, 0.0))
    return [max(-LARGEST_REPORTED, min(LARGEST_REPORTED, found[name])) for name in REPORTED]
