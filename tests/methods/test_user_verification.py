"""User verification: its loss by hand, a head that learns and is shared, and refused settings."""

from __future__ import annotations

import math

import pytest
import torch
from tests.small import digest, small_run
from torch import nn

from fedssl.errors import ConfigError
from fedssl.methods.user_verification import verification


def test_by_hand() -> None:
    """Unit vectors (1, 0) and (0, 1) give logits (1, 0, 0) and (0, 2, 0); the client is number 1."""
    head = nn.Linear(2, 3, bias=False)
    head.weight.data = torch.tensor([[1.0, 0], [0, 2], [0, 0]])
    expected = (math.log(math.e + 2) + math.log(math.e**2 + 2) - 2) / 2
    value = verification(head, torch.tensor([[7.0, 0], [0, 0.1]]), 1).detach()
    assert float(value) == pytest.approx(expected)


def test_the_head_learns_and_is_shared(tmp_path) -> None:
    keys = {"method": {"name": "user-verification", "clients": 5}, "rounds": 2}
    run, plain = small_run(tmp_path / "run", **keys), small_run(tmp_path / "plain", rounds=2)
    head = 4 * 5 * (16 + 1)  # bytes of 16 inputs and a bias for each of five clients
    for ours, theirs in zip(run.metrics, plain.metrics, strict=True):
        assert ours["bytes_up"] - theirs["bytes_up"] == 5 * head
        assert ours["loss"] > theirs["loss"]
    assert digest(run) != digest(plain)


def test_without_weight_the_encoder_is_fedavgs(tmp_path) -> None:
    zero = small_run(tmp_path / "zero", method={"name": "user-verification", "weight": 0.0})
    assert digest(zero) == digest(small_run(tmp_path / "plain"))


def test_misfitting_settings_are_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"set method\.clients"):
        small_run(tmp_path / "few", method={"name": "user-verification", "clients": 3})
    with pytest.raises(ConfigError, match="objective with a projector"):
        small_run(tmp_path / "labels", objective="supervised", method="user-verification")
