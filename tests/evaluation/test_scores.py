"""Scores are those of scikit-learn."""

from __future__ import annotations

import json

import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_recall_fscore_support

from fedssl.errors import DataError
from fedssl.evaluation.scores import Scores, mean_scores, score


@pytest.mark.parametrize("seed", range(5))
def test_like_scikit_learn_with_absent_classes(seed: int) -> None:
    """Class 4 is only predicted, class 5 only true, class 6 neither."""
    rng = torch.Generator().manual_seed(seed)
    truth = torch.randint(0, 4, (60,), generator=rng)
    predicted = torch.where(
        torch.rand(60, generator=rng) < 0.6, truth, torch.randint(0, 4, (60,), generator=rng)
    )
    truth[:3], predicted[3:6] = 5, 4
    found = score(predicted, truth, tuple("abcdefg"))
    assert found.accuracy == pytest.approx(accuracy_score(truth, predicted))
    assert found.macro_f1 == pytest.approx(f1_score(truth, predicted, average="macro", zero_division=0))
    assert found.confusion == confusion_matrix(truth, predicted, labels=range(7)).tolist()
    columns = precision_recall_fscore_support(truth, predicted, labels=range(7), zero_division=0)
    for row, name, precision, recall, f1, count in zip(found.per_class, "abcdefg", *columns, strict=True):
        assert row["class"] == name
        assert row["count"] == count
        assert (row["precision"], row["recall"], row["f1"]) == pytest.approx((precision, recall, f1))


def test_by_hand() -> None:
    """Two of three right; class a: precision 1, recall 1/2; class b: precision 1/2, recall 1."""
    found = score(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), ("a", "b"))
    assert found.accuracy == pytest.approx(2 / 3)
    assert [row["f1"] for row in found.per_class] == pytest.approx([2 / 3, 2 / 3])
    assert [row["count"] for row in found.per_class] == [2, 1]


def test_plain_values() -> None:
    found = score(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), ("a", "b"))
    assert Scores(**json.loads(json.dumps(found.to_dict()))) == found


def test_mean_of_scores() -> None:
    truth = torch.tensor([0, 0, 1, 1])
    right, half = score(truth, truth, ("a", "b")), score(torch.tensor([0, 0, 0, 0]), truth, ("a", "b"))
    mean = mean_scores([right, half])
    assert mean.accuracy == pytest.approx(0.75)
    assert mean.macro_f1 == pytest.approx((1 + (2 / 3 + 0) / 2) / 2)
    assert mean.per_class[0] == pytest.approx(
        {"class": "a", "precision": 0.75, "recall": 1.0, "f1": (1 + 2 / 3) / 2, "count": 2}
    )
    assert mean.confusion == [[2, 0], [1, 1]]
    assert mean_scores([half]) == half
    with pytest.raises(DataError):
        mean_scores([])


def test_invalid_predictions_are_an_error() -> None:
    with pytest.raises(DataError, match=r"\[2\] predictions .* \[3\] labels"):
        score(torch.tensor([0, 1]), torch.tensor([0, 1, 1]), ("a", "b"))
    with pytest.raises(DataError):
        score(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64), ("a",))
    with pytest.raises(DataError, match="prediction 2 is outside the 2 classes"):
        score(torch.tensor([2, 1]), torch.tensor([0, 1]), ("a", "b"))
    with pytest.raises(DataError, match="label -1 is outside the 2 classes"):
        score(torch.tensor([0, 1]), torch.tensor([-1, 1]), ("a", "b"))


def test_the_confusion_of_very_many_classes_is_not_kept() -> None:
    names = tuple(str(number) for number in range(101))
    assert score(torch.tensor([100]), torch.tensor([100]), names).confusion == []
    assert len(score(torch.tensor([99]), torch.tensor([99]), names[:100]).confusion) == 100
