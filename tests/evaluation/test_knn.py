"""The kNN monitor against a naive loop and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from fedssl.errors import ConfigError, DataError
from fedssl.evaluation.knn import predict

pytestmark = pytest.mark.usefixtures("one_thread")


def blobs(rows: int, seed: int, classes: int = 5, features: int = 8) -> tuple[Tensor, Tensor]:
    centers = torch.randn(classes, features, generator=torch.Generator().manual_seed(99))
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (rows,), generator=rng)
    return centers[y] + torch.randn(rows, features, generator=rng), y


def naive(
    train_x: Tensor, train_y: Tensor, test_x: Tensor, classes: int, k: int, temperature: float
) -> list[int]:
    result = []
    for query in test_x.double().tolist():
        cosines = []
        for index, row in enumerate(train_x.double().tolist()):
            dot = sum(a * b for a, b in zip(query, row, strict=True))
            cosines.append((-dot / math.hypot(*query) / math.hypot(*row), index))
        votes = [0.0] * classes
        for negative, index in sorted(cosines)[:k]:
            votes[int(train_y[index])] += math.exp(-negative / temperature)
        result.append(votes.index(max(votes)))
    return result


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.1), (5, 0.1), (20, 0.07), (20, 1.0)])
def test_like_a_naive_loop(k: int, temperature: float) -> None:
    (train_x, train_y), (test_x, _) = blobs(60, 0), blobs(40, 1)
    found = predict(train_x, train_y, test_x, 5, k=k, temperature=temperature)
    assert found.tolist() == naive(train_x, train_y, test_x, 5, k, temperature)


def test_like_scikit_learn() -> None:
    (train_x, train_y), (test_x, test_y) = blobs(500, 0), blobs(300, 1)
    peer = KNeighborsClassifier(
        20, metric="cosine", algorithm="brute", weights=lambda distance: np.exp((1 - distance) / 0.1)
    ).fit(train_x.double().numpy(), train_y.numpy())
    found = predict(train_x, train_y, test_x, 5)
    assert found.tolist() == peer.predict(test_x.double().numpy()).tolist()
    assert float((found == test_y).double().mean()) > 0.6  # a fifth would be chance


@pytest.mark.parametrize("chunk", [1, 7, 299, 300, 1000])
def test_chunks_do_not_matter(chunk: int) -> None:
    (train_x, train_y), (test_x, _) = blobs(200, 0), blobs(300, 1)
    whole = predict(train_x, train_y, test_x, 5)
    assert torch.equal(predict(train_x, train_y, test_x, 5, chunk=chunk), whole)


def test_length_of_features_does_not_matter() -> None:
    (train_x, train_y), (test_x, _) = blobs(200, 0), blobs(100, 1)
    scale = torch.logspace(-3, 3, 200)[:, None]
    assert torch.equal(predict(train_x * scale, train_y, test_x, 5), predict(train_x, train_y, test_x, 5))


def test_weights_decide_by_hand() -> None:
    """One neighbor at cosine 1 against two at cosine 0.6: e^(1/T) > 2 e^(0.6/T) for T = 0.1 only."""
    train_x = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.6, -0.8], [-1.0, 0.0]])
    train_y = torch.tensor([0, 1, 1, 1])
    query = torch.tensor([[2.0, 0.0]])
    assert predict(train_x, train_y, query, 2, k=3, temperature=0.1).tolist() == [0]
    assert predict(train_x, train_y, query, 2, k=3, temperature=1.0).tolist() == [1]


def test_ties_go_to_the_earlier_neighbor_and_the_lower_class() -> None:
    copies = torch.ones(50, 4)
    query = torch.ones(1, 4)
    labels = torch.tensor([2] * 3 + [1] * 47)
    assert predict(copies, labels, query, 3, k=5).tolist() == [2]  # the first five are 2 2 2 1 1
    assert predict(copies, labels, query, 3, k=6).tolist() == [1]  # 2 2 2 1 1 1: equal votes
    assert predict(copies, labels, query, 3, k=50).tolist() == [1]


def test_more_neighbors_than_images() -> None:
    (train_x, train_y), (test_x, _) = blobs(10, 0), blobs(20, 1)
    assert torch.equal(
        predict(train_x, train_y, test_x, 5, k=1000), predict(train_x, train_y, test_x, 5, k=10)
    )
    assert predict(train_x[:1], train_y[:1], test_x, 5).tolist() == [int(train_y[0])] * 20


def test_a_low_temperature_is_the_nearest_neighbor() -> None:
    (train_x, train_y), (test_x, _) = blobs(100, 0), blobs(50, 1)
    nearest = predict(train_x, train_y, test_x, 5, k=1)
    assert torch.equal(predict(train_x, train_y, test_x, 5, temperature=1e-6), nearest)


def test_bad_input() -> None:
    train_x, train_y = blobs(10, 0)
    with pytest.raises(ConfigError, match="k=0"):
        predict(train_x, train_y, train_x, 5, k=0)
    with pytest.raises(ConfigError, match="temperature=0"):
        predict(train_x, train_y, train_x, 5, temperature=0)
    diverged = train_x.clone()
    diverged[0, 0] = torch.nan
    for bad in ((diverged, train_y, train_x), (train_x, train_y, diverged)):
        with pytest.raises(DataError, match="1 of 80 feature values"):
            predict(*bad, 5)
    with pytest.raises(DataError, match="classes"):
        predict(train_x, train_y + 5, train_x, 5)
    with pytest.raises(DataError, match="shape"):
        predict(train_x[:0], train_y[:0], train_x, 5)
