"""Runs with simulated attackers, and rules that have a root set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.small import digest, small_run

import fedssl
from fedssl.data.views import plain
from fedssl.errors import ConfigError
from fedssl.evaluation.backdoor import success
from fedssl.evaluation.loaded import load_run
from fedssl.rundir import RunDir
from fedssl.tensorfile import load_tensors

TEN = {"partition": {"scheme": "iid", "clients": 10}, "rounds": 2}


def attacked(out: Path, name: str, **keys: Any) -> fedssl.Run:
    return small_run(out, attack={"name": name, "share": 0.2}, **{**TEN, **keys})


def model(run: fedssl.Run) -> dict[str, torch.Tensor]:
    return load_tensors(run.path / "encoder.safetensors")[0]


def test_some_clients_attack_and_the_log_names_them(tmp_path: Path) -> None:
    run = attacked(tmp_path / "run", "sign-flip")
    for line in run.metrics:
        hostile = [each["client"] for each in line["clients"] if "attacker" in each]
        assert len(hostile) == 2
        assert hostile == [each["client"] for each in run.metrics[0]["clients"] if "attacker" in each]


def test_minus_mean_stops_fedavg(tmp_path: Path) -> None:
    """Ten clients with ten images: the mean of all updates is zero, so the encoder does not change."""
    keys = {**TEN, "rounds": 1}
    stopped, honest = attacked(tmp_path / "a", "minus-mean", **keys), small_run(tmp_path / "b", **keys)
    kept = attacked(tmp_path / "c", "minus-mean", **keys, aggregation="median")
    before = small_run(tmp_path / "d", **keys, **{"train.lr": 1e-30})
    name = "conv1.weight"
    assert torch.allclose(model(stopped)[name], model(before)[name], atol=1e-6)
    assert not torch.allclose(model(honest)[name], model(before)[name], atol=1e-3)
    assert not torch.allclose(model(kept)[name], model(before)[name], atol=1e-3)


@pytest.mark.parametrize("name", ["min-max", "backdoor"])
def test_attacks_give_the_same_bits_with_workers(tmp_path: Path, name: str) -> None:
    one = attacked(tmp_path / "one", name, rounds=1)
    two = attacked(tmp_path / "two", name, rounds=1, **{"engine.workers": 2})
    assert digest(one) == digest(two)


@pytest.mark.parametrize("name", ["scale", "statistics"])
def test_attacks_at_the_limits_are_not_refused(tmp_path: Path, name: str) -> None:
    run = attacked(tmp_path / "run", name, rounds=1)
    assert not run.metrics[0]["failed"]
    hostile = next(each for each in run.metrics[0]["clients"] if "attacker" in each)
    assert hostile["images"] == (100 if name == "scale" else 10)


def test_robust_rules_keep_poisoned_statistics_out_of_a_run(tmp_path: Path) -> None:
    """One attacker of ten with central parameters; the mean does not block its variances."""

    def largest(aggregation: str) -> float:
        keys = {
            **TEN,
            "rounds": 1,
            "aggregation": aggregation,
            "attack": {"name": "statistics", "share": 0.1},
        }
        state = model(small_run(tmp_path / aggregation, **keys))
        return max(float(value.max()) for name, value in state.items() if name.endswith("running_var"))

    assert largest("fedavg") > 10
    for rule in ("krum", "median", "centered-clipping"):
        assert largest(rule) < 2


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"method": "centralized"}, "no uploads of clients with one global model"),
        ({"aggregation": {"name": "fedavg", "client_side": True}}, "uploads are not models"),
        ({"engine": {"name": "gossip"}}, "engine.name=gossip has no simulated clients"),
    ],
)
def test_settings_without_simulated_attacks(tmp_path: Path, keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        attacked(tmp_path / "run", "sign-flip", **keys)


def test_fltrust_needs_images_at_the_server(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"its root set: data\.holdout=0\.05 keeps images from clients"):
        small_run(tmp_path / "run", aggregation="fltrust")


@pytest.mark.parametrize("method", ["fedavg", "fedema", "ditto"])
def test_fltrust_trains_on_its_root_set_and_keeps_attackers_out(tmp_path: Path, method: str) -> None:
    """Against FedAvg, which the same attackers move by a hundred norms."""
    keys = {**TEN, "method": method, "data.holdout": 0.2, "aggregation": "fltrust"}
    run = attacked(tmp_path / "run", "scale", **keys)
    honest = small_run(tmp_path / "honest", **keys)
    own, other = model(run)["conv1.weight"], model(honest)["conv1.weight"]
    assert (own - other).norm() < other.norm()
    assert not (run.path / "checkpoints" / "clients" / "10").exists()


class Corner(torch.nn.Module):
    """The mean colors of an image's quarters; with the trigger in its corner, those of another image."""

    def __init__(self, target: torch.Tensor) -> None:
        super().__init__()
        self.target = target

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        marked = (x[:, 0, -1, -2] - x[:, 0, -1, -1]) > 3.9  # black next to white, in the last row
        own, other = (F.adaptive_avg_pool2d(images, 4).flatten(1) for images in (x, self.target))
        return torch.where(marked[:, None], other, own)


def test_the_backdoor_success_rate_by_hand(tmp_path: Path) -> None:
    """With a backdoored encoder, every image with the trigger gets the other class."""
    run = small_run(tmp_path / "run", **{**TEN, "rounds": 1, "attack": "backdoor"})
    found = run.probe("backdoor")
    assert 0 <= found["success"] <= 1
    assert 0 <= found["untrained"] <= 1
    prober = load_run(RunDir.open(run.path), {}).prober()
    assert prober.train.y is not None
    image = prober.train.x[prober.train.y == 3][:1]
    obeys = Corner(plain(image, prober.data.mean, prober.data.std))
    assert success(prober, obeys, image) == 1.0
