from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedssl.aggregation import build
from fedssl.errors import RunError
from fedssl.state import State, Upload

from .conftest import STATISTICS

Make = Callable[..., list[Upload]]


@pytest.mark.parametrize(("rule", "options"), [("median", {}), ("trimmed-mean", {}), ("krum", {"keep": 3})])
def test_one_hostile_client_moves_nothing_far(
    rule: str, options: dict[str, int], previous: State, make_uploads: Make
) -> None:
    """Neither layers nor statistics; the mean would be thrown out by 10⁶."""
    uploads = make_uploads(5)
    for name, tensor in uploads[2].state.items():
        if tensor.is_floating_point():
            uploads[2].state[name] = tensor + 1e7
    new = build(rule, **options)(previous, uploads, STATISTICS)
    honest = [upload.state for upload in uploads if upload.client != 2]
    for name, tensor in new.items():
        if tensor.is_floating_point():
            stacked = torch.stack([state[name] for state in honest])
            assert bool((tensor <= stacked.max(dim=0).values + 1e-6).all()), name
            assert bool((tensor >= stacked.min(dim=0).values - 1e-6).all()), name


def test_trimming_rounds_up(previous: State) -> None:
    """A fifth of four is less than one client, and one is cut at each end all the same."""
    uploads = [Upload(i, {"w": torch.tensor([v])}, 1) for i, v in enumerate([-1e6, 1.0, 2.0, 1e6])]
    assert build("trimmed-mean", trim=0.2)({"w": torch.zeros(1)}, uploads)["w"].item() == 1.5
    assert build("trimmed-mean", trim=0.0)({"w": torch.zeros(1)}, uploads)["w"].item() == 0.75


def test_a_product_that_floats_round_up_does_not_trim_one_more() -> None:
    """0.07 · 100 is 7.000000000000001 in floats."""
    values = torch.arange(100.0) ** 2
    uploads = [Upload(i, {"w": value.view(1)}, 1) for i, value in enumerate(values)]
    new = build("trimmed-mean", trim=0.07)({"w": torch.zeros(1)}, uploads)
    assert new["w"].item() == pytest.approx(values[7:93].mean().item())


def test_statistics_and_the_number_of_samples_do_not_choose_the_winner_of_krum(make_uploads: Make) -> None:
    previous = {"w": torch.zeros(1), "mean": torch.zeros(1)}
    values = [(0.0, 900.0), (0.1, -900.0), (0.2, 0.0), (5.0, 0.0), (9.0, 0.0)]
    uploads = [
        Upload(i, {"w": torch.tensor([w]), "mean": torch.tensor([m])}, num_samples=10**i)
        for i, (w, m) in enumerate(values)
    ]
    new = build("krum")(previous, uploads, frozenset({"mean"}))
    assert new["w"].item() == pytest.approx(0.1)
    assert new["mean"].item() == -900.0


@pytest.mark.parametrize(
    ("rule", "options", "clients", "message"),
    [
        ("krum", {}, 4, "needs 5 uploads, and there are 4: lower aggregation.malicious"),
        ("krum", {"malicious": 2}, 6, "needs 7 uploads"),
        ("krum", {"malicious": 0, "keep": 4}, 3, "needs 4 uploads"),
        ("trimmed-mean", {}, 2, "cuts 1 of 2 uploads at each end"),
        ("trimmed-mean", {"trim": 0.4}, 4, "cuts 2 of 4 uploads at each end"),
    ],
)
def test_too_few_uploads(
    rule: str, options: dict[str, float], clients: int, message: str, previous: State, make_uploads: Make
) -> None:
    with pytest.raises(RunError, match=message):
        build(rule, **options)(previous, make_uploads(clients))
