"""Options of the rules, with numbers to check on paper.

`conv` has a weight of two dimensions and a bias, `norm` has γ and β and its running statistics. The client of
the first tests turns conv.weight from (3, 4) to (4, 3), δ = 24/25 = 0.96, and the others further:

    conv.bias  (5, 0) → (3, 4)    δ = 15/25 = 0.6
    norm.γ     (1, 1) → (1, 0)    δ = 1/√2
    norm.β     (2, 0) → (0, 1)    δ = 0
    norm.mean  (3, 4) → (−4, 3)   δ = 0
    norm.var   (4, 3) → (8, 6)    δ = 1
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fedssl.aggregation import build
from fedssl.aggregation.scaled_sum import ScaledSum
from fedssl.errors import ConfigError
from fedssl.state import State, Upload

STATISTICS = frozenset({"norm.running_mean", "norm.running_var"})


def state(
    weight: list[float], bias: list[float], gamma: list[float], beta: list[float], **statistics: list[float]
) -> State:
    return {
        "conv.weight": torch.tensor([weight]),
        "conv.bias": torch.tensor(bias),
        "norm.weight": torch.tensor(gamma),
        "norm.bias": torch.tensor(beta),
        "norm.running_mean": torch.tensor(statistics["mean"]),
        "norm.running_var": torch.tensor(statistics["var"]),
    }


PREVIOUS = state([3.0, 4.0], [5.0, 0.0], [1.0, 1.0], [2.0, 0.0], mean=[3.0, 4.0], var=[4.0, 3.0])
CLIENT = state([4.0, 3.0], [3.0, 4.0], [1.0, 0.0], [0.0, 1.0], mean=[-4.0, 3.0], var=[8.0, 6.0])


def alone(rule: str, round: int | None = None, samples: int = 7, **options: Any) -> dict[str, list[float]]:
    """The new global state with one client, whose weight is 1 whatever the rule."""
    new = build(rule, **options)(PREVIOUS, [Upload(0, CLIENT, samples, loss=0.5)], STATISTICS, round)
    return {name: tensor.flatten().tolist() for name, tensor in new.items()}


def scaled(delta: float, values: list[float]) -> Any:
    return pytest.approx([delta * value for value in values], abs=1e-6)


@pytest.mark.parametrize("rule", ["l-dawa", "l-dawa-fedavg", "l-dawa-loss"])
def test_a_tensor_is_a_layer(rule: str) -> None:
    new = alone(rule)
    assert new["conv.weight"] == scaled(0.96, [4, 3])
    assert new["conv.bias"] == scaled(0.6, [3, 4])
    assert new["norm.weight"] == scaled(1 / math.sqrt(2), [1, 0])
    assert new["norm.bias"] == scaled(0.0, [0, 1])
    assert new["norm.running_mean"] == [-4.0, 3.0]


@pytest.mark.parametrize("rule", ["l-dawa", "l-dawa-fedavg", "l-dawa-loss"])
def test_a_module_is_a_layer(rule: str) -> None:
    """conv: (24 + 15)/(√50·√50) = 0.78. norm: γ and β give (1 + 0)/(√(2 + 4)·√(1 + 1)) = 1/√12."""
    new = alone(rule, layer="module")
    assert new["conv.weight"] == scaled(0.78, [4, 3])
    assert new["conv.bias"] == scaled(0.78, [3, 4])
    assert new["norm.weight"] == scaled(1 / math.sqrt(12), [1, 0])
    assert new["norm.bias"] == scaled(1 / math.sqrt(12), [0, 1])


@pytest.mark.parametrize("rule", ["l-dawa", "l-dawa-fedavg", "l-dawa-loss"])
def test_only_weights_are_layers(rule: str) -> None:
    new = alone(rule, layer="weights")
    assert new["conv.weight"] == scaled(0.96, [4, 3])
    assert new["conv.bias"] == [3.0, 4.0]
    assert new["norm.weight"] == [1.0, 0.0]
    assert new["norm.bias"] == [0.0, 1.0]


@pytest.mark.parametrize("layer", ["tensor", "module", "weights"])
def test_scaled_statistics_are_layers_of_their_own(layer: str) -> None:
    new = alone("l-dawa", layer=layer, statistics="scaled")
    assert new["norm.running_mean"] == scaled(0.0, [-4, 3])
    assert new["norm.running_var"] == scaled(1.0, [8, 6])
    assert new["norm.weight"] == alone("l-dawa", layer=layer)["norm.weight"]


def test_scaled_statistics_under_one_angle_for_the_whole_model() -> None:
    """Over the layers: 24 + 15 + 1 + 0 = 40, ‖w_g‖² = 25 + 25 + 2 + 4, ‖w_k‖² = 25 + 25 + 1 + 1."""
    whole = 40 / math.sqrt(56 * 52)
    new = alone("m-dawa", statistics="scaled")
    assert new["conv.weight"] == scaled(whole, [4, 3])
    assert new["norm.running_mean"] == scaled(whole, [-4, 3])


TWO = [
    Upload(0, CLIENT | {"norm.running_mean": torch.tensor([1.0, 0.0])}, num_samples=30, loss=0.0),
    Upload(1, CLIENT | {"norm.running_mean": torch.tensor([5.0, 0.0])}, num_samples=10, loss=math.log(4)),
]


@pytest.mark.parametrize(
    ("rule", "share"),
    [("fedavg", 0.75), ("loss", 0.8), ("euc", math.hypot(2, 4) / (math.hypot(2, 4) + math.hypot(2, 4)))],
)
def test_scaled_statistics_are_weighted_as_layers_are(rule: str, share: float) -> None:
    """The first means of the clients are 1 and 5; both are √(2² + 4²) away from the global (3, 4)."""
    new = build(rule, statistics="scaled")(PREVIOUS, TWO, STATISTICS)
    assert new["norm.running_mean"][0].item() == pytest.approx(share * 1 + (1 - share) * 5)


@pytest.mark.parametrize(
    "rule", ["fedavg", "fixed-norms", "loss", "euc", "m-dawa", "l-dawa", "l-dawa-fedavg"]
)
@pytest.mark.parametrize("client_side", [False, True])
def test_pooled_statistics_are_those_of_all_images(rule: str, client_side: bool) -> None:
    """Three images 0, 1, 5 at one client and one image 14 at the other: together mean 5, variance 30.5.

    Client 0: mean 2, variance (4 + 1 + 9)/3 = 14/3. Client 1: mean 14, variance 0. Its mean is 12 from the
    other's, so the mean of the variances, 3.5, is far too small.
    """
    images = torch.tensor([0.0, 1.0, 5.0]), torch.tensor([14.0])
    uploads = [
        Upload(
            client,
            CLIENT
            | {
                "norm.running_mean": own.mean().expand(2),
                "norm.running_var": own.var(correction=0).expand(2),
            },
            num_samples=len(own),
            loss=0.1,
        )
        for client, own in enumerate(images)
    ]
    known = build(rule, statistics="pooled", client_side=client_side)
    sent = [known.on_client(PREVIOUS, upload, STATISTICS) for upload in uploads]
    new = known(PREVIOUS, sent, STATISTICS)
    together = torch.cat(images)
    assert new["norm.running_mean"].tolist() == pytest.approx([together.mean().item()] * 2)
    assert new["norm.running_var"].tolist() == pytest.approx([together.var(correction=0).item()] * 2)
    assert new["norm.running_var"][0].item() == pytest.approx(30.5)


def test_pooling_loses_no_digits_far_from_zero_and_no_variance_is_negative() -> None:
    far = torch.tensor([30_000.0, 30_000.0])
    previous = PREVIOUS | {"norm.running_mean": far}
    uploads = [
        Upload(n, CLIENT | {"norm.running_mean": far, "norm.running_var": torch.tensor([1e-3, 0.0])}, 3)
        for n in range(7)
    ]
    new = build("fedavg", statistics="pooled")(previous, uploads, STATISTICS)
    assert new["norm.running_var"].tolist() == pytest.approx([1e-3, 0.0], rel=1e-6)
    moved = previous | {"norm.running_mean": torch.tensor([0.1, 0.1])}
    assert (build("fedavg", statistics="pooled")(moved, uploads, STATISTICS)["norm.running_var"] >= 0).all()


def test_fixed_norms() -> None:
    """The weight keeps its length 5: the mean of (4, 3) and (−6, −8) is (1.5, 0.25) at 3:1."""
    other = CLIENT | {"conv.weight": torch.tensor([[-6.0, -8.0]])}
    uploads = [Upload(0, CLIENT, 30), Upload(1, other, 10)]
    new = build("fixed-norms")(PREVIOUS, uploads, STATISTICS)
    longer = 5 / math.hypot(1.5, 0.25)
    assert new["conv.weight"].flatten().tolist() == pytest.approx([1.5 * longer, 0.25 * longer])
    for name in ("conv.bias", "norm.weight", "norm.bias", "norm.running_var"):
        assert torch.equal(new[name], build("fedavg")(PREVIOUS, uploads, STATISTICS)[name])


def test_fixed_norms_of_every_tensor_and_of_modules() -> None:
    """conv goes from (3, 4 | 5, 0) to (4, 3 | 3, 4), as long; γ from √2 to 1, β from 2 to 1."""
    new = alone("fixed-norms", layer="tensor")
    assert new["norm.weight"] == scaled(math.sqrt(2), [1, 0])
    assert new["norm.bias"] == scaled(2.0, [0, 1])
    new = alone("fixed-norms", layer="module")
    assert new["norm.weight"] == scaled(math.sqrt(6 / 2), [1, 0])
    assert new["norm.bias"] == scaled(math.sqrt(6 / 2), [0, 1])
    zeros = PREVIOUS | {"norm.bias": torch.zeros(2)}  # as at initialization: no length to keep
    kept = build("fixed-norms", layer="tensor")(zeros, [Upload(0, CLIENT, 1)], STATISTICS)
    assert kept["norm.bias"].tolist() == [0.0, 1.0]


def test_the_preset_of_the_authors_code() -> None:
    rule = build("l-dawa", preset="reference-code")
    assert (rule.layer, rule.statistics, rule.warmup) == ("tensor", "scaled", 3)  # type: ignore[attr-defined]
    assert build(**rule.model_dump()) == rule  # as config.toml of a run has it
    assert build("l-dawa", preset="reference-code", warmup=1).warmup == 1  # type: ignore[attr-defined]
    uploads = [Upload(0, CLIENT, 1), Upload(1, PREVIOUS, 3)]  # L-DAWA: one half each; FedAvg: 1 to 3
    for round in (1, 2, 3):
        assert rule(PREVIOUS, uploads, STATISTICS, round)["norm.running_mean"].tolist() == [1.25, 3.75]
    # δ of the running means is 0 and 1: (1/2)·0·(−4, 3) + (1/2)·1·(3, 4)
    assert rule(PREVIOUS, uploads, STATISTICS, 4)["norm.running_mean"].tolist() == pytest.approx([1.5, 2.0])
    fourth = rule(PREVIOUS, uploads, STATISTICS, 4)["conv.weight"]
    assert fourth.flatten().tolist() == pytest.approx([(0.96 * 4 + 3) / 2, (0.96 * 3 + 4) / 2])


def test_warm_up_keeps_the_choice_of_statistics() -> None:
    rule = build("l-dawa", statistics="pooled", warmup=1)
    assert isinstance(rule, ScaledSum)
    assert rule.at(1) == build("fedavg", statistics="pooled").model_copy(update={"name": ""})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "l-dawa", "layer": "modul"}, "did you mean module"),
        ({"name": "m-dawa", "layer": "module"}, r"unknown key 'aggregation\.layer'"),
        ({"name": "l-dawa", "statistics": "pool"}, "did you mean pooled"),
        ({"name": "l-dawa", "preset": "reference"}, "did you mean reference-code"),
        ({"name": "median", "statistics": "mean"}, r"unknown key 'aggregation\.statistics'"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(**options)
