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
def test_one_malicious_client_has_bounded_influence(
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


def test_rounding_errors_do_not_trim_one_client_more() -> None:
    """0.07 · 100 is 7.000000000000001 in floats."""
    values = torch.arange(100.0) ** 2
    uploads = [Upload(i, {"w": value.view(1)}, 1) for i, value in enumerate(values)]
    new = build("trimmed-mean", trim=0.07)({"w": torch.zeros(1)}, uploads)
    assert new["w"].item() == pytest.approx(values[7:93].mean().item())


MEAN = frozenset({"mean"})


def two_kinds(*values: tuple[float, float]) -> list[Upload]:
    return [
        Upload(i, {"w": torch.tensor([w]), "mean": torch.tensor([m])}, num_samples=10**i)
        for i, (w, m) in enumerate(values)
    ]


ZEROS = {"w": torch.zeros(1), "mean": torch.zeros(1)}


def test_krum_selects_a_client_that_is_central_in_parameters_and_statistics() -> None:
    """Client 1 has the most central parameter and absurd statistics; sizes do not matter.

    Scores (two nearest of five) of parameters: 5, 2, 5, 4705, 10345: ranks 1, 0, 2, 3, 4 (of equal ones the
    lower client is ahead). Of statistics: 5, huge, 2, 2, 5: ranks 2, 4, 0, 1, 3. The worse of both ranks:
    2, 4, 2, 3, 4; client 2 has the lower sum.
    """
    uploads = two_kinds((0.0, 1.0), (1.0, -900.0), (2.0, 2.0), (50.0, 3.0), (90.0, 4.0))
    new = build("krum")(ZEROS, uploads, MEAN)
    assert (new["w"].item(), new["mean"].item()) == (2.0, 2.0)


def test_statistics_of_krum_stay_within_the_range_of_the_others() -> None:
    """The winner's mean is the lowest of five, and with one hostile client the second lowest is the limit."""
    uploads = two_kinds((0.0, -2.0), (0.0, 3.0), (9.0, 1.0), (-9.0, 2.0), (8.0, 2.0))
    new = build("krum", malicious=1)(ZEROS, uploads, MEAN)
    chosen = {(upload.state["w"].item(), upload.state["mean"].item()) for upload in uploads}
    assert (new["w"].item(), -2.0) in chosen
    assert 1.0 <= new["mean"].item() <= 2.0


@pytest.mark.parametrize("rule", ["krum", "median", "trimmed-mean", "centered-clipping"])
@pytest.mark.parametrize("seed", range(20))
def test_central_parameters_do_not_hide_poisoned_statistics(rule: str, seed: int) -> None:
    """A client of ten with the mean of all parameters and a running variance of 10⁶, twenty seeds."""
    generator = torch.Generator().manual_seed(seed)
    states = [
        {"w": torch.randn(50, generator=generator), "var": 1 + torch.rand(5, generator=generator)}
        for _ in range(9)
    ]
    hostile = {"w": torch.stack([state["w"] for state in states]).mean(0), "var": torch.full((5,), 1e6)}
    uploads = [Upload(i, state, 10) for i, state in enumerate([hostile, *states])]
    previous = {"w": torch.zeros(50), "var": torch.ones(5)}
    new = build(rule)(previous, uploads, frozenset({"var"}))
    assert 0.9 < float(new["var"].min()) <= float(new["var"].max()) < 2.6


def test_centered_clipping_by_hand() -> None:
    """Medians 2 and 0, distances 2, 1, 0, 1, 98 with median 1: moves −1, −1, 0, 1, 1. The center stays.

    With a radius of two medians the moves are −2, −1, 0, 1, 2.
    """
    uploads = [Upload(i, {"w": torch.tensor([v, 0.0])}, 1) for i, v in enumerate([0.0, 1.0, 2.0, 3.0, 100.0])]
    previous = {"w": torch.zeros(2)}
    assert build("centered-clipping")(previous, uploads)["w"].tolist() == [2.0, 0.0]
    assert build("centered-clipping", radius=2.0)(previous, uploads)["w"].tolist() == [2.0, 0.0]
    # Median 1.5, distances 1.5, 0.5, 0.5, 1.5 with lower median 0.5: moves −0.5, −0.5, 0.5, 0.5.
    assert build("centered-clipping")(previous, uploads[:4])["w"].tolist() == [1.5, 0.0]
    # Nothing is clipped: the mean.
    assert build("centered-clipping", radius=1e9)(previous, uploads)["w"].tolist() == pytest.approx(
        [21.2, 0.0]
    )


def test_several_steps_of_centered_clipping_by_hand() -> None:
    """0, 0, 6, 7, 8: median 6, distances 6, 6, 0, 1, 2 (median 2), moves −2, −2, 0, 1, 2: 6 − 1/5 = 5.8.

    From there distances 5.8, 5.8, 0.2, 1.2, 2.2 (median 2.2), moves −2.2, −2.2, 0.2, 1.2, 2.2: 5.8 − 0.8/5.
    """
    uploads = [Upload(i, {"w": torch.tensor([v])}, 1) for i, v in enumerate([0.0, 0.0, 6.0, 7.0, 8.0])]
    previous = {"w": torch.zeros(1)}
    assert build("centered-clipping")(previous, uploads)["w"].item() == pytest.approx(5.8)
    assert build("centered-clipping", steps=2)(previous, uploads)["w"].item() == pytest.approx(5.64)


@pytest.mark.parametrize(
    ("rule", "options", "clients", "message"),
    [
        ("krum", {}, 4, "needs 5 uploads, but there are 4: lower aggregation.malicious"),
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
