"""Accuracy, F1 and confusion of predictions, in all and by class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from fedssl.errors import DataError

MOST_CLASSES = 100  # of a confusion matrix that is kept: a thousand classes would be a million numbers


@dataclass(frozen=True)
class Scores:
    """How good predictions are.

    `macro_f1` is the mean over the classes that occur in the truth or among the predictions, as
    scikit-learn has it by default; a ratio 0/0 counts as 0. `per_class` has every class, with
    `count` images of it in the truth. `confusion` is how many images of a class (row) were taken for which
    (column); empty where there are more than `MOST_CLASSES` classes.
    """

    accuracy: float
    macro_f1: float
    per_class: list[dict[str, Any]]
    confusion: list[list[float]]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def score(predicted: Tensor, truth: Tensor, classes: tuple[str, ...]) -> Scores:
    """Scores of predicted against true class numbers."""
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
        confusion=confusion.tolist() if number <= MOST_CLASSES else [],
    )


def mean_scores(scores: Sequence[Scores]) -> Scores:
    """The mean over several encoders, of every number (counts are rounded)."""
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
    return part / whole.clamp_min(1)  # where the whole is 0 so is the part
