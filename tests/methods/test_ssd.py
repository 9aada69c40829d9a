"""SSD: both losses by hand, and dimensions that differ between clients but not between rounds."""

from __future__ import annotations

import math

import pytest
import torch
from tests.small import digest, small_run

from fedssl.errors import ConfigError
from fedssl.methods.ssd import SSD, distillation, separation


def test_separation_by_hand() -> None:
    """z = (0.6, 0.8) stretched to (1.2, 0.8) has length √2.08; ‖z − z'‖² = 2 − 2·z·z'."""
    z = torch.tensor([[3.0, 4]], requires_grad=True)
    value = separation(z, torch.tensor([2.0, 1]))
    assert float(value.detach()) == pytest.approx(2 - 2 * (0.6 * 1.2 + 0.8 * 0.8) / math.sqrt(2.08))
    (gradient,) = torch.autograd.grad(value, z)
    assert gradient[0, 0] < 0 < gradient[0, 1]  # a step moves z toward its own dimension
    assert float(separation(z.detach(), torch.ones(2))) == pytest.approx(0, abs=1e-12)


def test_distillation_by_hand() -> None:
    """Unit vectors (1, 0) and (0, 1): softmax p = e/(1+e) and 1−p, so KL = (2p−1)·log(p/(1−p)) = 2p−1."""
    p = math.e / (1 + math.e)
    features = torch.tensor([[0.0, 5]], requires_grad=True)
    z = torch.tensor([[2.0, 0]], requires_grad=True)
    value = distillation(features, z)
    assert float(value.detach()) == pytest.approx(2 * p - 1)
    assert torch.autograd.grad(value, [features, z], allow_unused=True)[1] is None


def test_every_client_has_its_own_dimensions() -> None:
    method = SSD(dimensions=0.25, scale=3.0)
    drawn = [method.stretch(0, client, 16) for client in range(6)]
    assert all(sorted(each.tolist()) == [1.0] * 12 + [3.0] * 4 for each in drawn)
    assert len({str(each.tolist()) for each in drawn}) == 6
    assert torch.equal(drawn[0], method.stretch(0, 0, 16))
    assert not torch.equal(drawn[0], method.stretch(1, 0, 16))


def test_without_weights_it_is_fedavg(tmp_path) -> None:
    off = {"name": "ssd", "weight": 0.0, "distillation": 0.0}
    assert digest(small_run(tmp_path / "off", rounds=1, method=off)) == digest(
        small_run(tmp_path / "plain", rounds=1)
    )
    on = small_run(tmp_path / "on", rounds=1, method="ssd")
    assert not on.metrics[0]["failed"]


def test_misfitting_settings_are_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"set model\.projector_out=16"):
        small_run(tmp_path / "width", method="ssd", **{"model.projector_out": 8})
    with pytest.raises(ConfigError, match="objective with a projector"):
        small_run(tmp_path / "labels", objective="supervised", method="ssd")
