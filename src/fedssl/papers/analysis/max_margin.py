"""The exact multi-class classifier of least norm that separates all samples with margin 1.

    min Σ_c ‖w_c‖²   subject to   ⟨w_y, x⟩ ≥ ⟨w_c, x⟩ + 1   for every sample (x, y) and every c ≠ y

Its dual has one multiplier α ≥ 0 per constraint. Projected gradient descent with momentum guesses which of
them are positive. Given those, the multipliers solve a linear system; negative multipliers and margins
below 1 then correct the guess, until there are no more errors.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from fedssl.errors import DataError

Array = NDArray[np.float64]
Labels = NDArray[np.int64]

TOLERANCE = 1e-9  # of margins
GUESSES = 30
GRADIENT_STEPS = 200
CORRECTIONS = 25


@dataclass(frozen=True)
class MaxMargin:
    """The classifier, with multipliers that prove its optimality by the KKT conditions."""

    weights: Array  # [classes, d]
    multipliers: Array  # [samples, classes], 0 in the column of the sample's own class
    margins: Array  # [samples, classes], ⟨w_y − w_c, x⟩


def max_margin(x: Array, y: Labels, classes: int) -> MaxMargin:
    """Return the classifier of least norm with margin 1; classes without samples count as rivals."""
    problem = _Dual(x, y, classes)
    multipliers = np.zeros((len(x), classes))
    for _ in range(GUESSES):
        multipliers = problem.descend(multipliers, GRADIENT_STEPS)
        found = problem.corrected(multipliers > 0)
        if found is not None:
            return found
    raise DataError(
        f"no classifier with margin 1 found for {len(x)} samples in {x.shape[1]} dimensions: "
        "the classes cannot (or can hardly) be separated by planes through the origin"
    )


class _Dual:
    def __init__(self, x: Array, y: Labels, classes: int) -> None:
        self.x, self.y = x, y
        self.own = np.eye(classes, dtype=bool)[y]
        self.gram = x @ x.T
        # ‖Gᵀα‖² ≤ classes·λ_max(x xᵀ)·‖α‖², with G the matrix of all constraints.
        self.step = 1.0 / (classes * float(linalg.eigvalsh(x.T @ x)[-1]))

    def solution(self, multipliers: Array) -> MaxMargin:
        """Return w = Gᵀα: each multiplier adds its sample to its own class, and subtracts it from a rival."""
        weights = (np.where(self.own, multipliers.sum(axis=1, keepdims=True), 0.0) - multipliers).T @ self.x
        scores = self.x @ weights.T
        return MaxMargin(weights, multipliers, scores[self.own][:, None] - scores)

    def descend(self, multipliers: Array, steps: int) -> Array:
        """Run accelerated projected gradient descent on ½‖Gᵀα‖² − Σα, with momentum restarts."""
        ahead, pace = multipliers, 1.0
        for _ in range(steps):
            slope = self.solution(ahead).margins - 1.0
            new = np.where(self.own, 0.0, np.maximum(ahead - self.step * slope, 0.0))
            if ((ahead - new) * (new - multipliers)).sum() > 0:
                pace = 1.0
            faster = (1.0 + np.sqrt(1.0 + 4.0 * pace**2)) / 2.0
            ahead = new + (pace - 1.0) / faster * (new - multipliers)
            multipliers, pace = new, faster
        return multipliers

    def corrected(self, active: NDArray[np.bool_]) -> MaxMargin | None:
        """Solve for the active multipliers and correct errors until the solution is valid, else None."""
        for _ in range(CORRECTIONS):
            multipliers = np.zeros(active.shape)
            multipliers[active] = _solve(self._products(active))
            found = self.solution(multipliers)
            negative = multipliers < 0
            violated = ~self.own & ~active & (found.margins < 1.0 - TOLERANCE)
            if not negative.any() and not violated.any():
                exact = np.abs(found.margins[active] - 1.0).max(initial=0.0) < TOLERANCE
                return found if exact else None
            active = (active & ~negative) | violated
        return None

    def _products(self, active: NDArray[np.bool_]) -> Array:
        """Return G Gᵀ of the active constraints: (e_y − e_c)·(e_y' − e_c') times ⟨x, x'⟩."""
        sample, rival = np.nonzero(active)
        own = self.y[sample]
        directions = np.eye(active.shape[1])[own] - np.eye(active.shape[1])[rival]
        products: Array = (directions @ directions.T) * self.gram[np.ix_(sample, sample)]
        return products


def _solve(products: Array) -> Array:
    """Return multipliers for which all active margins are 1; the shortest if samples are dependent."""
    ones = np.ones(len(products))
    with warnings.catch_warnings():
        warnings.simplefilter("error", linalg.LinAlgWarning)
        try:
            solved: Array = linalg.solve(products, ones, assume_a="pos")
        except (linalg.LinAlgError, linalg.LinAlgWarning):
            solved = linalg.lstsq(products, ones)[0]
    return solved
