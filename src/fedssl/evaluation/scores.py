"""Accuracy, F1 and confusion of predictions, in total and by class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from fedssl.errors import DataError

MAX_CLASSES = 100  # larger confusion matrices are not stored: 1,000 classes are a million numbers


@dataclass(frozen=True)
class Scores:
    """Scores of predictions.

    Attributes:
        accuracy: the share of correct predictions.
        macro_f1: the mean over the classes that occur among labels or predictions, as scikit-learn's
            default; 0/0 counts as 0.
        per_class: precision, recall, F1 and the number of images (`count`) of every class.
        confusion: the number of images by class (row) and prediction (column); empty for more than
            `MAX_CLASSES` classes.
    """

    accuracy: float
    macro_f1: float
    per_class: list[dict[str, Any]]
    confusion: list[list[float]]

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON."""
        return asdict(self)


def score(predicted: Tensor, truth: Tensor, classes: tuple[str, ...]) -> Scores:
    """Score predicted against true class numbers."""
    predicted, truth = predicted.cpu(), truth.cpu()
    if predicted.shape != truth.shape or truth.ndim != 1 or not len(truth):
        raise DataError(f"{list(predicted.shape)} predictions cannot be scored on {list(truth.shape)} labels")
    number = len(classes)
    for what, values in (("prediction", predicted), ("label", truth)):
        if int(values.min()) < 0 or int(values.max()) >= number:
            worst = int(values.max()) if int(values.max()) >= number else int(values.min())
            raise DataError(f"{what} {worst} is outside the {number} classes (0 to {number - 1})")
    confusion = torch.bincount(truth * number + predicted, minlength=number**2).view(number, number).double()
    right, true, claimed = confusion.diagonal(), confusion.sum(dim=1), confusion.sum(dim=0)
    precision, recall = _ratio(right, claimed), _ratio(right, true)
    f1 = _ratio(2 * right, true + claimed)
    return Scores(
        accuracy=float(right.sum() / len(truth)),
        macro_f1=float(f1[(true + claimed) > 0].mean()),
        per_class=[
            {"class": name, "precision": p, "recall": r, "f1": f, "count": int(n)}
            for name, p, r, f, n in zip(
                classes, precision.tolist(), recall.tolist(), f1.tolist(), true.tolist(), strict=True
            )
        ],
        confusion=confusion.tolist() if number <= MAX_CLASSES else [],
    )


def mean_scores(scores: Sequence[Scores]) -> Scores:
    """Average every number over several encoders (counts are rounded)."""
    if not scores:
        raise DataError("no scores to average")

    def mean(values: Iterable[float]) -> float:
        return sum(values) / len(scores)

    return Scores(
        accuracy=mean(each.accuracy for each in scores),
        macro_f1=mean(each.macro_f1 for each in scores),
        per_class=[
            {
                "class": rows[0]["class"],
                **{key: mean(row[key] for row in rows) for key in ("precision", "recall", "f1")},
                "count": round(mean(row["count"] for row in rows)),
            }
            for rows in zip(*(each.per_class for each in scores), strict=True)
        ],
        confusion=[
            [mean(cells) for cells in zip(*rows, strict=True)]
            for rows in zip(*(each.confusion for each in scores), strict=True)
        ],
    )


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return part / whole.clamp_min(1)  # if the whole is 0, so is the part
