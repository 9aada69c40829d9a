"""FedX: relations by hand and by a loop, and what is trained, shared and refused."""

from __future__ import annotations

import math

import pytest
import torch
from tests.small import digest, small_run

from fedssl.errors import ConfigError
from fedssl.methods.fedx import relation


def test_by_hand() -> None:
    """Views at right angles, two other images along them: r = (s, 1 − s) and (1 − s, s), the mean even."""
    a, b = torch.tensor([[2.0, 0]]), torch.tensor([[0.0, 3]])
    others = torch.tensor([[5.0, 0], [0, 1]])
    s = math.e / (math.e + 1)
    expected = 0.5 * math.log(0.5 / s) + 0.5 * math.log(0.5 / (1 - s))
    assert float(relation(a, b, others, 1.0, 1.0)) == pytest.approx(expected, rel=1e-5)
    assert float(relation(a, 4 * a, others, 1.0, 1.0)) == pytest.approx(0, abs=1e-6)


def test_equals_the_loop() -> None:
    rng = torch.Generator().manual_seed(0)
    a, b, others = (torch.randn(count, 5, generator=rng) for count in (4, 4, 6))
    unit = [[row / row.norm() for row in each.double()] for each in (a, b, others)]
    total = 0.0
    for i in range(4):
        sharp, soft = [], []
        for view in unit[:2]:
            similarity = torch.stack([view[i] @ other for other in unit[2]])
            sharp.append(torch.softmax(similarity / 0.05, 0))
            soft.append(torch.softmax(similarity / 0.2, 0))
        mean = (sharp[0] + sharp[1]) / 2
        total += sum(float((mean * (mean / each).log()).sum()) for each in soft) / 2
    assert float(relation(a, b, others, 0.2, 0.05)) == pytest.approx(total / 4, rel=1e-5)


def test_the_head_is_shared_and_the_global_model_is_not_changed(tmp_path) -> None:
    run, plain = small_run(tmp_path / "run", method="fedx"), small_run(tmp_path / "plain")
    head = 4 * (16 * 8 + 8 * 4 + 8 * 16 + 16) + 8  # Linear-BN-Linear; BatchNorm counts its batches
    for ours, theirs in zip(run.metrics, plain.metrics, strict=True):
        assert ours["bytes_up"] - theirs["bytes_up"] == 5 * head
        assert not ours["failed"]
        assert ours["loss"] > theirs["loss"]
    assert digest(run) != digest(plain)


def test_every_term_of_the_loss_matters(tmp_path) -> None:
    def trained(**options: float) -> str:
        name = "-".join(options) or "all"
        return digest(small_run(tmp_path / name, rounds=2, method={"name": "fedx", **options}))

    found = {trained(), trained(contrast=0.0), trained(relation=0.0), trained(temperature=0.5)}
    assert len(found) == 4


@pytest.mark.usefixtures("warm_workers")
def test_workers_give_the_same_bits(tmp_path) -> None:
    keys = {"method": "fedx", "rounds": 2}
    two = small_run(tmp_path / "two", **keys, **{"engine.workers": 2})
    assert digest(small_run(tmp_path / "one", **keys)) == digest(two)


def test_an_objective_without_projections_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match="objective with a projector"):
        small_run(tmp_path / "labels", objective="supervised", method="fedx")
