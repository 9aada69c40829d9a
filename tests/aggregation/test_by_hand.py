"""Two clients, numbers to check on paper.

The global layer is (3, 4), of length 5. Client 0 sends (4, 3): δ = (12 + 12)/25 = 0.96, at distance √2.
Client 1 sends (−6, −8), the opposite twice as long: δ = −1, at distance √(81 + 144) = 15.
"""

from __future__ import annotations

import math

import pytest
import torch

from fedssl.aggregation import build
from fedssl.aggregation.angles import angles, mean_angle
from fedssl.aggregation.krum import krum_scores
from fedssl.state import State, Upload

PREVIOUS: State = {"w": torch.tensor([3.0, 4.0]), "mean": torch.tensor([0.0]), "count": torch.tensor(5)}
UPLOADS = [
    Upload(
        0,
        {"w": torch.tensor([4.0, 3.0]), "mean": torch.tensor([1.0]), "count": torch.tensor(6)},
        num_samples=30,
        loss=0.0,
    ),
    Upload(
        1,
        {"w": torch.tensor([-6.0, -8.0]), "mean": torch.tensor([5.0]), "count": torch.tensor(9)},
        num_samples=10,
        loss=math.log(4),  # e^−L = 1/4: softmax gives 0.8 and 0.2
    ),
]
NEAR, FAR = 15 / (15 + math.sqrt(2)), math.sqrt(2) / (15 + math.sqrt(2))


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("fedavg", (0.75 * 4 - 0.25 * 6, 0.75 * 3 - 0.25 * 8)),  # (1.5, 0.25)
        ("fixed-norms", (0.75 * 4 - 0.25 * 6, 0.75 * 3 - 0.25 * 8)),  # one dimension: as FedAvg
        ("loss", (0.8 * 4 - 0.2 * 6, 0.8 * 3 - 0.2 * 8)),  # (2, 0.8)
        ("euc", (NEAR * 4 - FAR * 6, NEAR * 3 - FAR * 8)),
        ("l-dawa", ((0.96 * 4 + 6) / 2, (0.96 * 3 + 8) / 2)),  # (4.92, 5.44)
        ("m-dawa", ((0.96 * 4 + 6) / 2, (0.96 * 3 + 8) / 2)),  # one layer is the whole model
        ("l-dawa-fedavg", (0.75 * 0.96 * 4 + 0.25 * 6, 0.75 * 0.96 * 3 + 0.25 * 8)),  # (4.38, 4.16)
        ("l-dawa-loss", (0.8 * 0.96 * 4 + 0.2 * 6, 0.8 * 0.96 * 3 + 0.2 * 8)),  # (4.272, 3.904)
    ],
)
def test_two_clients(rule: str, expected: tuple[float, float]) -> None:
    new = build(rule)(PREVIOUS, UPLOADS, frozenset({"mean"}))
    torch.testing.assert_close(new["w"], torch.tensor(expected))
    torch.testing.assert_close(new["mean"], torch.tensor([2.0]))  # (30·1 + 10·5)/40, whatever the rule
    assert new["count"].item() == 9


@pytest.mark.parametrize(
    ("images", "step"),
    [
        # Updates of 3 and −1, ε = 1/4.
        ((1, 1), 5 / (2 * (1 + 0.25))),  # Σ p‖Δ‖² = (9 + 1)/2 = 5, ‖Δ̄‖² = 1: η = 2
        ((3, 1), 1.0),  # Σ p‖Δ‖² = (27 + 1)/4 = 7, ‖Δ̄‖² = 4: 7/8.5 is below 1
    ],
)
def test_fedexp(images: tuple[int, int], step: float) -> None:
    previous = {"w": torch.tensor([2.0]), "mean": torch.tensor([0.0])}
    uploads = [
        Upload(0, {"w": torch.tensor([5.0]), "mean": torch.tensor([1.0])}, images[0]),
        Upload(1, {"w": torch.tensor([1.0]), "mean": torch.tensor([1.0])}, images[1]),
    ]
    mean_update = (3 * images[0] - images[1]) / sum(images)
    new = build("fedexp", eps=0.25)(previous, uploads, frozenset({"mean"}))
    assert new["w"].item() == pytest.approx(2 + step * mean_update)
    assert new["mean"].item() == 1.0  # statistics are averaged, not extrapolated


def test_m_dawa_has_one_angle_for_all_layers_and_l_dawa_one_for_each() -> None:
    previous = {"a": torch.tensor([1.0]), "b": torch.tensor([1.0])}
    uploads = [Upload(0, {"a": torch.tensor([3.0]), "b": torch.tensor([-4.0])}, 1)]
    whole = (3 - 4) / (math.sqrt(2) * 5)
    assert build("m-dawa")(previous, uploads)["a"].item() == pytest.approx(3 * whole)
    assert build("m-dawa")(previous, uploads)["b"].item() == pytest.approx(-4 * whole)
    assert build("l-dawa")(previous, uploads)["a"].item() == 3.0
    assert build("l-dawa")(previous, uploads)["b"].item() == 4.0


def test_angles() -> None:
    measured = angles(PREVIOUS, UPLOADS[0].state, ["w"])
    assert measured == {"w": pytest.approx(0.96)}
    assert mean_angle({"a": 1.0, "b": 0.5}) == 0.75


def test_robust_rules() -> None:
    """Coordinates 1, 2, 3, 4, 100: median 3, trimmed mean (2 + 3 + 4)/3; 3 has its two nearest at 1 and 1."""
    previous = {"w": torch.zeros(1)}
    uploads = [
        Upload(i, {"w": torch.tensor([value])}, 1) for i, value in enumerate([1.0, 100.0, 3.0, 2.0, 4.0])
    ]
    assert build("median")(previous, uploads)["w"].item() == 3.0
    assert build("median")(previous, uploads[:4])["w"].item() == 2.5
    assert build("trimmed-mean")(previous, uploads)["w"].item() == 3.0
    # Scores of 1, 2, 3, 4 (two nearest): 1+4, 1+1, 1+1, 1+4. Client 2, who sent 3, is first of the best.
    assert build("krum")(previous, uploads)["w"].item() == 3.0
    assert build("krum", keep=2)(previous, uploads)["w"].item() == 2.5
    gaps = torch.tensor([[0.0, 1.0, 4.0], [1.0, 0.0, 9.0], [4.0, 9.0, 0.0]])
    assert krum_scores(gaps, malicious=0).tolist() == [1.0, 1.0, 4.0]
