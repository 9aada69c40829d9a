"""fedssl check: a round on two devices, here twice the CPU."""

from types import SimpleNamespace

import pytest
import torch
from tests.small import arguments
from torch import nn

from fedssl.cli import main
from fedssl.commands import device
from fedssl.commands.device import Comparison, compare

WORDS = [*arguments(), "rounds=1"]


def test_the_cpu_agrees_with_itself(capsys):
    assert main(["check", "--device", "cpu", *WORDS]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "one round on the CPU and on cpu, in single precision"
    assert [line.split(",")[0].strip() for line in shown[1:3]] == ["cpu", "cpu"]
    assert "views/s" in shown[1]
    assert shown[3].startswith("ok: the encoders differ by 0.00% of the distance")


def test_a_device_that_computes_something_else_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(device, "compare", lambda *_: Comparison(difference=0.5, moved=1.0))
    assert main(["check", "--device", "cpu", *WORDS]) == 1
    assert "differ by 50.00% of the distance that training covers, more than 20%" in capsys.readouterr().err


def test_a_missing_device_is_an_error(capsys):
    assert main(["check", "--device", "cuda:9", *WORDS]) == 2
    assert "device='cuda:9' cannot be used" in capsys.readouterr().err


def run_with(weight: float, divergence: float) -> SimpleNamespace:
    encoder = nn.Linear(1, 2)
    with torch.no_grad():
        encoder.weight.fill_(weight)
        encoder.bias.fill_(0)
    return SimpleNamespace(encoder=encoder, metrics=[{"divergence": divergence}])


@pytest.mark.parametrize(("weight", "agrees"), [(3.0, True), (3.1, True), (4.0, False)])
def test_the_comparison_by_hand(weight, agrees):
    """Two weights of 3 against two of `weight`: they differ by √2·|weight − 3|, at most a fifth of 2."""
    found = compare(run_with(3.0, 2.0), run_with(weight, 9.0))
    assert found.difference == pytest.approx(2**0.5 * (weight - 3))
    assert found.moved == 2.0
    assert found.agrees == agrees
