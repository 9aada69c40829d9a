"""Scaling on clients and only summing on the server gives the same global model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedssl.aggregation import build
from fedssl.aggregation.scaled_sum import ScaledSum
from fedssl.aggregation.secure import SumOnly, scaled
from fedssl.errors import RunError
from fedssl.state import State, Upload

from .conftest import STATISTICS, clone

Make = Callable[..., list[Upload]]
SCALED = ["fedavg", "loss", "euc", "m-dawa", "l-dawa", "l-dawa-fedavg", "l-dawa-loss"]


def scaled_rule(name: str) -> ScaledSum:
    rule = build(name)
    assert isinstance(rule, ScaledSum)
    return rule


def summed(rule: ScaledSum, previous: State, uploads: list[Upload], reference: float = 0.0) -> State:
    server = SumOnly(previous)
    for upload in uploads:
        server.add(scaled(rule, previous, upload, STATISTICS, reference))
    return server.finish()


@pytest.mark.parametrize("name", SCALED)
@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "mixed"])
def test_same_global_model(name: str, mixed: bool, previous: State, make_uploads: Make) -> None:
    uploads = make_uploads(4, previous, mixed, odd=True)
    states = [clone(upload.state) for upload in uploads]
    expected = scaled_rule(name)(previous, uploads, STATISTICS)
    torch.testing.assert_close(summed(scaled_rule(name), previous, uploads), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        summed(scaled_rule(name), previous, uploads[::-1]), expected, rtol=1e-5, atol=1e-6
    )
    for upload, state in zip(uploads, states, strict=True):
        torch.testing.assert_close(upload.state, state, rtol=0, atol=0)


def test_scales_and_masses_are_those_of_the_paper(previous: State, make_uploads: Make) -> None:
    (upload,) = make_uploads(1, previous)
    upload.state["conv.weight"] = -previous["conv.weight"]
    scales, masses = scaled_rule("l-dawa-fedavg").scale(previous, upload, STATISTICS)
    assert scales["conv.weight"] == pytest.approx(-10)  # δ·n
    assert masses["conv.weight"] == pytest.approx(10)
    assert scales["bn.running_mean"] == masses["bn.running_mean"] == pytest.approx(10)
    assert "bn.num_batches_tracked" not in scales
    scales, masses = scaled_rule("l-dawa").scale(previous, upload, STATISTICS)
    assert scales["conv.weight"] == pytest.approx(-1)
    assert masses["conv.weight"] == 1.0


@pytest.mark.parametrize("name", ["loss", "l-dawa-loss"])
def test_large_losses_need_a_reference_that_clients_share(
    name: str, previous: State, make_uploads: Make
) -> None:
    uploads = make_uploads(3)
    for upload in uploads:
        upload.loss += 1000
    with pytest.raises(ValueError, match=r"client 0: the mass of conv\.weight is e\^-10.*reference near -10"):
        summed(scaled_rule(name), previous, uploads)
    expected = scaled_rule(name)(previous, uploads, STATISTICS)
    torch.testing.assert_close(summed(scaled_rule(name), previous, uploads, reference=-1000.0), expected)


def test_a_round_of_warm_up(previous: State, make_uploads: Make) -> None:
    rule, uploads = build("l-dawa", warmup=1), make_uploads(2)
    assert isinstance(rule, ScaledSum)
    torch.testing.assert_close(
        summed(rule.at(1), previous, uploads), rule(previous, uploads, STATISTICS, round=1)
    )


def test_bad_input(previous: State, make_uploads: Make) -> None:
    with pytest.raises(RunError, match="without uploads"):
        SumOnly(previous).finish()
    (upload,) = make_uploads(1)
    with pytest.raises(ValueError, match=r"client 0: no mass of conv\.weight, so it was not scaled"):
        SumOnly(previous).add(upload)
    sent = scaled(scaled_rule("fedavg"), previous, upload)
    sent.state["bn.bias"] = torch.zeros(1)
    with pytest.raises(ValueError, match=r"bn\.bias has shape \(1,\)"):
        SumOnly(previous).add(sent)
