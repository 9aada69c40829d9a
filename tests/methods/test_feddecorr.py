"""FedDecorr: the correlation by hand and by NumPy, and FedAvg without it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.small import digest, small_run

from fedssl.methods.feddecorr import correlation


def test_by_hand() -> None:
    """Columns (1, −1, 1, −1) and (2, −2, 2, −2) are fully correlated, (1, 1, −1, −1) with neither: 2/9."""
    features = torch.tensor([[1.0, 2, 1], [-1, -2, 1], [1, 2, -1], [-1, -2, -1]])
    assert float(correlation(features)) == pytest.approx(2 / 9)
    assert float(correlation(5 * features + 3)) == pytest.approx(2 / 9)


def test_is_numpys_correlation() -> None:
    features = torch.randn(20, 7, generator=torch.Generator().manual_seed(0))
    matrix = np.corrcoef(features.numpy(), rowvar=False)
    expected = (np.square(matrix).sum() - 7) / 49
    assert float(correlation(features)) == pytest.approx(expected, rel=1e-5)


def test_a_constant_dimension_has_a_finite_gradient() -> None:
    features = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    features[:, 1] = 4.0
    features.requires_grad_()
    (gradient,) = torch.autograd.grad(correlation(features), features)
    assert gradient.isfinite().all()


def test_without_weight_it_is_fedavg_and_with_it_features_are_less_correlated(tmp_path) -> None:
    plain = small_run(tmp_path / "plain", rounds=1)
    assert digest(
        small_run(tmp_path / "zero", rounds=1, method={"name": "feddecorr", "weight": 0})
    ) == digest(plain)
    heavy = small_run(tmp_path / "heavy", rounds=1, method={"name": "feddecorr", "weight": 100.0})
    images = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    images = images[:, : next(iter(plain.encoder.state_dict().values())).shape[1]]
    with torch.no_grad():
        ours, theirs = (correlation(run.encoder.eval()(images)) for run in (heavy, plain))
    assert float(ours) < float(theirs)


@pytest.mark.parametrize("objective", ["byol", "moco-v2", "supervised"])
def test_any_objective(tmp_path, objective) -> None:
    run = small_run(tmp_path / "run", rounds=1, objective=objective, method="feddecorr")
    assert not run.metrics[0]["failed"]
