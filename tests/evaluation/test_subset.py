"""A share of the labels is stratified, seeded and nested."""

from __future__ import annotations

import pytest
import torch

from fedssl.errors import ConfigError
from fedssl.evaluation.subset import subset

LABELS = torch.tensor([0] * 500 + [1] * 200 + [3] * 100 + [7] * 2)[
    torch.randperm(802, generator=torch.Generator().manual_seed(0))
]


def test_every_class_keeps_its_share_and_at_least_one_image() -> None:
    for fraction, counts in ((0.1, [50, 20, 10, 1]), (0.01, [5, 2, 1, 1]), (1e-9, [1, 1, 1, 1])):
        index = subset(LABELS, fraction, seed=0)
        assert torch.bincount(LABELS[index], minlength=8)[[0, 1, 3, 7]].tolist() == counts
        assert torch.equal(index, torch.unique(index))  # sorted, none twice


def test_a_share_of_one_keeps_all() -> None:
    assert torch.equal(subset(LABELS, 1.0, seed=3), torch.arange(802))


def test_seeded_and_nested() -> None:
    assert torch.equal(subset(LABELS, 0.1, seed=1), subset(LABELS, 0.1, seed=1))
    assert not torch.equal(subset(LABELS, 0.1, seed=1), subset(LABELS, 0.1, seed=2))
    assert set(subset(LABELS, 0.01, seed=1).tolist()) < set(subset(LABELS, 0.1, seed=1).tolist())


def test_all_images_of_a_class_are_equally_likely() -> None:
    """Over 600 seeds each of 20 images is drawn 150 times; ±45 is four standard deviations."""
    labels = torch.zeros(20, dtype=torch.int64)
    drawn = sum(torch.bincount(subset(labels, 0.25, seed), minlength=20) for seed in range(600))
    assert isinstance(drawn, torch.Tensor)
    assert (drawn - 150).abs().max() <= 45


@pytest.mark.parametrize("fraction", [0, -0.1, 1.5])
def test_impossible_shares(fraction: float) -> None:
    with pytest.raises(ConfigError, match="share"):
        subset(LABELS, fraction, seed=0)
