"""Example-level differential privacy: every image's gradient is clipped, and noise is added to their sum."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from tests.small import SMALL, digest, small_run

pytest.importorskip("opacus")

import dp_accounting
from dp_accounting.pld import PLDAccountant

import fedssl
from fedssl.config import load
from fedssl.engines.network import build_network
from fedssl.errors import ConfigError, FedsslError
from fedssl.objectives.mae import MAE as MaskedAutoEncoder
from fedssl.objectives.simsiam import SimSiam
from fedssl.privacy.accountant import Ledger, Release
from fedssl.privacy.example import ExampleTrainer, composite_parameters, per_image_gradients
from fedssl.privacy.refusals import check_config
from fedssl.privacy.spent import SpentFile

DP: dict[str, Any] = {"privacy.mode": "example", "privacy.noise": 1.0, "privacy.delta": 1e-3}
BYOL: dict[str, Any] = {"objective": "byol", "model.norm": "group"}
MAE: dict[str, Any] = {
    "objective": {"name": "mae", "decoder_width": 12, "decoder_depth": 1},
    "model": {**SMALL["model"], "encoder": "vit_tiny", "patch": 4},
}


# --- gradients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [BYOL, {**BYOL, "objective": "simsiam"}, MAE])
def test_gradients_equal_those_of_single_images(
    keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with a naive implementation: one backward pass for each image."""
    config = load(SMALL, keys)
    model = build_network(config, (8, 8), 1, 0).model.train()
    objective, rng = config.objective, torch.Generator().manual_seed(1)
    views = [torch.rand(3, 1, 8, 8, generator=rng) for _ in range(objective.num_views)]

    def loss(images: list[torch.Tensor]) -> torch.Tensor:
        return objective.loss(model, images, None, torch.Generator().manual_seed(2))

    def same_mask(self: Any, images: int, patches: int, rng: Any) -> tuple[torch.Tensor, torch.Tensor]:
        order = torch.arange(patches).repeat(images, 1)
        return order[:, :1], order[:, 1:]

    monkeypatch.setattr(MaskedAutoEncoder, "split", same_mask)  # else it depends on the place in the batch
    with per_image_gradients(model, objective.trained(model)) as trained:
        loss(views).backward()
        found = [parameter.grad_sample.clone() for parameter in trained]
    for image in range(3):
        for parameter in model.parameters():
            parameter.grad = None
        loss([view[image : image + 1] for view in views]).backward()
        for parameter, samples in zip(trained, found, strict=True):
            torch.testing.assert_close(samples[image], parameter.grad, rtol=1e-3, atol=1e-5)
    assert not any(hasattr(parameter, "grad_sample") for parameter in model.parameters())


def test_the_network_is_restored_afterwards() -> None:
    config = load(SMALL, {"model.norm": "group", "objective": "byol"})
    model = build_network(config, (8, 8), 1, 0).model
    wanted = [parameter.requires_grad for parameter in model.parameters()]
    in_place = [getattr(module, "inplace", None) for module in model.modules()]
    with per_image_gradients(model, config.objective.trained(model)):
        assert not any(getattr(module, "inplace", False) for module in model.modules())
    assert [parameter.requires_grad for parameter in model.parameters()] == wanted
    assert [getattr(module, "inplace", None) for module in model.modules()] == in_place


def test_a_table_of_positions_is_not_trained() -> None:
    model = build_network(load(SMALL, MAE), (8, 8), 1, 0).model
    fixed = {id(parameter) for parameter in composite_parameters(model)}
    names = {name for name, parameter in model.named_parameters() if id(parameter) in fixed}
    assert names == {"encoder.pos_embed", "decoder.hidden"}


# --- clipping and noise ------------------------------------------------------------------------------


def private_step(samples: torch.Tensor, noise: float, clip: float) -> torch.Tensor:
    """The gradient of one step, times the expected number of images."""
    privacy = load(SMALL, {**DP, **BYOL, "privacy.noise": noise, "privacy.clip": clip}).privacy
    parameter = nn.Parameter(torch.zeros(samples.shape[1:]))
    optimizer = ExampleTrainer(privacy, bytes(32), SpentFile(Path("unused"), True))._private([parameter], 8)
    parameter.grad_sample = samples  # type: ignore[attr-defined]
    optimizer.pre_step()
    assert parameter.grad is not None
    return parameter.grad * 8


def test_every_gradient_is_clipped_to_its_norm() -> None:
    samples = torch.randn(50, 4, 5, generator=torch.Generator().manual_seed(3)) * 0.3
    expected = torch.zeros(4, 5)
    for sample in samples:
        expected += sample * min(1.0, 1.5 / float(sample.norm()))
    assert 0.2 < float((samples.flatten(1).norm(dim=1) > 1.5).float().mean()) < 0.8
    torch.testing.assert_close(private_step(samples, 1e-9, 1.5), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("drawn", [0, 3])
def test_noise_is_normal_and_of_the_right_size(drawn: int) -> None:
    found = private_step(torch.zeros(drawn, 200, 100), 2.0, 0.5)
    assert stats.kstest(found.flatten().double().numpy() / (2.0 * 0.5), "norm").pvalue > 1e-3


def test_images_are_drawn_independently(tmp_path: Path) -> None:
    """The number of images in a step is binomial, as the accountant assumes: neither fixed nor shuffled."""
    keys = {"partition": {"scheme": "iid", "clients": 1}, "train.epochs": 10.0, "train.lr": 1e-9, "rounds": 1}
    sizes: list[int] = []
    loss = SimSiam.loss

    def counted(self: Any, model: Any, views: Any, labels: Any, rng: Any) -> torch.Tensor:
        sizes.append(len(views[0]))
        return loss(self, model, views, labels, rng)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimSiam, "loss", counted)
        run = small_run(tmp_path / "run", **{**DP, **BYOL, "objective": "simsiam", **keys})
    (images,) = run.directory.partition()["sizes"]
    assert len(sizes) == pytest.approx(10 * images / 16, abs=1)
    assert np.mean(sizes) == pytest.approx(16, rel=0.15)
    assert np.var(sizes) == pytest.approx(16 * (1 - 16 / images), rel=0.6)


# --- runs --------------------------------------------------------------------------------------------


def independent_epsilon(rate: float, noise: float, steps: int, delta: float) -> float:
    """By dp-accounting directly, on a finer grid."""
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    accountant = PLDAccountant(value_discretization_interval=5e-4)
    return float(accountant.compose(dp_accounting.SelfComposedDpEvent(step, steps)).get_epsilon(delta))


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> fedssl.Run:
    keys = {"checkpoint.every": 1, "checkpoint.keep": 0, "rounds": 2}
    return small_run(tmp_path_factory.mktemp("example") / "run", **DP, **BYOL, **keys)


def test_epsilon_is_that_of_dp_accounting_for_each_client(private: fedssl.Run) -> None:
    sizes = private.directory.partition()["sizes"]
    for line in private.metrics:
        spent = {}
        for client, size in enumerate(sizes):
            rate = min(1.0, 16 / size)
            spent[client] = independent_epsilon(rate, 1.0, line["round"] * max(1, round(1 / rate)), 1e-3)
        found = {client["client"]: client["epsilon"] for client in line["clients"]}
        assert found == pytest.approx(spent, rel=0.002)
        assert line["epsilon"] == max(found.values())
        assert "loss" not in line  # it is not covered
        assert not any("loss" in client for client in line["clients"])


def test_a_resumed_run_spends_the_same(private: fedssl.Run, tmp_path: Path) -> None:
    shutil.copytree(private.path, tmp_path / "run")
    for name in ("result.json", "encoder.safetensors", "checkpoints/round-000002.safetensors"):
        (tmp_path / "run" / name).unlink()
    again = fedssl.resume(tmp_path / "run", quiet=True)
    assert digest(again) == digest(private)
    assert [line["epsilon"] for line in again.metrics] == [line["epsilon"] for line in private.metrics]


def test_the_run_stops_before_the_budget_is_spent(tmp_path: Path) -> None:
    first = Ledger({Release(16 / 20, 1.0): 1}).epsilon(1e-3)
    run = small_run(tmp_path / "run", **DP, **BYOL, **{"privacy.epsilon": 3 * first, "rounds": 30})
    assert run.result["rounds"] < 30
    assert run.metrics[-1]["epsilon"] <= 3 * first
    assert "privacy.epsilon is" in run.result["stopped"]


def test_a_client_does_not_train_beyond_its_budget_whatever_the_server_says(tmp_path: Path) -> None:
    with pytest.raises(fedssl.errors.RunError, match=r"its privacy budget is spent: this round would make ε"):
        small_run(tmp_path / "run", **DP, **BYOL, **{"privacy.epsilon": 0.1})


def test_secure_aggregation_hides_the_rest(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", **DP, **BYOL, **{"privacy.secure": True, "rounds": 1})
    (line,) = run.metrics
    assert line["epsilon"] > 0
    assert "loss" not in line


def test_spent_privacy_is_on_disk_before_training(tmp_path: Path) -> None:
    release = Release(0.1, 1.0)
    for repeats, expected in ((True, 10), (False, 30)):
        file = SpentFile(tmp_path / f"{repeats}.jsonl", repeats)
        for round in (1, 2, 2):  # round 2 was lost and is run again
            file.add(round, release, 10)
        assert file.before(2).releases == {release: expected}
        assert json.loads((tmp_path / f"{repeats}.jsonl").read_text().splitlines()[0])["steps"] == 10


# --- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"objective": "simclr"}, r"simclr compares every image with all others.*use mae, byol or simsiam"),
        ({"objective": "moco-v2"}, r"moco-v2 compares images with a queue of earlier ones"),
        ({"objective": "barlow-twins"}, r"barlow-twins correlates features over the batch"),
        ({"objective": "vae"}, r"vae does not declare that its loss is a mean over images"),
        ({"objective": "byol", "privacy.noise": 0.0}, r"mode=example needs privacy\.noise"),
        ({"objective": "byol", "train.clip": 1.0}, r"train\.clip clips mean gradients.*set privacy\.clip"),
        (
            {"objective": "byol", "train.compile": True},
            r"train\.compile=true does not provide per-image gradients",
        ),
        (
            {"objective": "byol", "train.precision": "bf16"},
            r"train\.precision=bf16 does not provide",
        ),
        (
            {"objective": "byol", "aggregation": "loss"},
            r"aggregation\.name=loss weights clients by their loss",
        ),
        ({"objective": "vicreg"}, r"vicreg keeps the variance of features over the batch"),
        ({"objective": "sigreg"}, r"sigreg compares the distribution of features in the batch"),
        (
            {"objective": "byol", "probe.recalibrate": True},
            r"recalibrate=true.*of privacy\.mode=example",
        ),
        *(
            ({"objective": "byol", "method": name}, rf"name={name} does not only minimize.*use fedavg,")
            for name in ("fedprox", "ditto", "fedrep", "featarc", "fedstyle")
        ),
    ],
)
def test_invalid_configs_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(load(SMALL, {**DP, **keys}))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"objective": "byol"}, r"objective\.name=byol has BatchNorm layers.*set model\.norm=group"),
        (
            {**BYOL, "privacy.delta": 0.2},
            r"privacy\.delta=0\.2 is not below 1 ÷ \d+, its images",
        ),
    ],
)
def test_invalid_runs_are_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(FedsslError, match=message):
        small_run(tmp_path / "run", **{**DP, **keys})


def test_a_quantile_has_no_effect() -> None:
    with pytest.raises(ConfigError, match=r"quantile.*no effect with privacy\.mode=example: client uses it"):
        load(SMALL, {**DP, "privacy.quantile": 0.5})


def test_group_normalization_is_everywhere() -> None:
    model = build_network(load(SMALL, BYOL), (8, 8), 1, 0).model
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
