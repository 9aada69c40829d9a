"""The membership attack: likelihood ratios of known distributions, and a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm
from torch import nn

import fedssl
from fedssl.audit.bounds import area_under_curve
from fedssl.audit.membership import audit_membership, likelihood_ratios, similarities
from tests.audit.test_canaries import loaded


def test_similarities_are_the_cosines_of_all_pairs() -> None:
    views = [torch.randn(3, 6, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    found = similarities(nn.Identity(), views)
    for image in range(3):
        pairs = [
            float(nn.functional.cosine_similarity(views[i][image], views[j][image], dim=0))
            for i in range(4)
            for j in range(i + 1, 4)
        ]
        assert found[image] == pytest.approx([np.mean(pairs), np.std(pairs)], abs=1e-6)


def test_the_ratio_is_that_of_the_fitted_normals() -> None:
    rng = np.random.default_rng(0)
    members, others = rng.normal(0.3, 1, (60, 2)), rng.normal(0, 1, (50, 2))
    scores = likelihood_ratios(members, others)
    fits = [multivariate_normal(group[::2].mean(0), np.cov(group[::2].T)) for group in (members, others)]
    expected = fits[0].logpdf(members[1::2]) - fits[1].logpdf(members[1::2])
    assert scores[0][1::2] == pytest.approx(expected, abs=1e-3)


def test_the_area_is_that_of_the_best_attack() -> None:
    """Two normals one standard deviation apart: Φ(1/√2) = 0.76."""
    rng = np.random.default_rng(1)
    scores = likelihood_ratios(rng.normal(1, 1, (2000, 1)), rng.normal(0, 1, (2000, 1)))
    assert area_under_curve(*scores) == pytest.approx(norm.cdf(1 / np.sqrt(2)), abs=0.02)


def test_equal_groups_cannot_be_told_apart() -> None:
    rng = np.random.default_rng(2)
    scores = likelihood_ratios(rng.normal(0, 1, (1000, 4)), rng.normal(0, 1, (1000, 4)))
    assert area_under_curve(*scores) == pytest.approx(0.5, abs=0.04)


def test_a_run(private: fedssl.Run) -> None:
    found = audit_membership(loaded(private), 40)
    assert found["members"] == 40
    assert 0 <= found["auc_low"] <= found["auc"] <= found["auc_high"] <= 1
    assert found["curve"][0] == [0.0, pytest.approx(found["curve"][0][1])]
    assert found["curve"][-1][0] > 0.95
    (rate,) = found["found"]  # 1 % of 40 images is less than one
    assert rate["false_alarms"] == 0.1
    assert rate["low"] <= rate["share"] <= rate["high"]
    assert rate["limit"] > 0.9  # ε = 8
    assert found == audit_membership(loaded(private), 40)


def test_too_few_images_say_so(private: fedssl.Run) -> None:
    assert "too few" in audit_membership(loaded(private), 39)["why_not"]
