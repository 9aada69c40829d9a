"""The kNN monitor: classification by weighted votes of the nearest training images."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from fedssl.errors import ConfigError
from fedssl.evaluation.features import check_features, check_labeled

SIMILARITIES = 1 << 25  # computed at a time; 128 MB in float32


@torch.no_grad()
def predict(
    train_x: Tensor,
    train_y: Tensor,
    test_x: Tensor,
    classes: int,
    *,
    k: int = 20,
    temperature: float = 0.1,
    chunk: int | None = None,
) -> Tensor:
    """Predict the class of each test feature by weighted kNN (Wu et al. 2018, section 3.4).

    The k training features with the largest cosine similarity vote for their class with weight exp(cos/T).
    Ties between neighbors are resolved by their order, ties between votes by the lower class.

    Args:
        train_x: training features [N, D].
        train_y: their labels [N].
        test_x: test features [M, D].
        classes: the number of classes.
        k: the number of neighbors.
        temperature: T.
        chunk: test features to compare at a time; None: as many as the memory limit allows.
    """
    if k < 1 or temperature <= 0:
        raise ConfigError(f"k={k}, temperature={temperature}: kNN needs k ≥ 1 and a temperature above 0")
    check_labeled(train_x, train_y, classes)
    check_features(test_x)
    train = F.normalize(train_x.float(), dim=1)
    votes_for = F.one_hot(train_y.to(train.device), classes).double()
    chunk = chunk or max(1, SIMILARITIES // len(train))
    predicted = []
    for part in torch.split(test_x, chunk):
        test = F.normalize(part.to(train.device, torch.float32), dim=1)
        cosine, index = _nearest(test @ train.T, k)
        # Relative to the nearest neighbor, so that exp does not overflow at low temperatures.
        weight = ((cosine - cosine[:, :1]).double() / temperature).exp()
        predicted.append(torch.einsum("nk,nkc->nc", weight, votes_for[index]).argmax(dim=1).cpu())
    return torch.cat(predicted)


def _nearest(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest values of each row in descending order, with their positions; ties by position."""
    value, index = similarity.topk(min(k + 1, similarity.shape[1]), dim=1)
    if k < value.shape[1]:
        # topk breaks ties arbitrarily, which matters only if they straddle the k-th place.
        tied = (value[:, k - 1] == value[:, k]).nonzero().squeeze(1)
        if len(tied):
            ordered, where = similarity[tied].sort(dim=1, descending=True, stable=True)
            value[tied, :k], index[tied, :k] = ordered[:, :k], where[:, :k]
    return value[:, :k], index[:, :k]
