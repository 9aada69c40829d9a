"""Runs that start from weights: features of the first round, inherited keys, and the stored copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from tests.small import SMALL, arguments, small_run
from torch import nn

import fedssl
from fedssl.config import load
from fedssl.engines.network import build_network
from fedssl.errors import ConfigError

TIMM = {
    "timm:resnet10t": {"size": (8, 8), "seed": 1},
    "timm:vit_tiny_patch16_224": {"size": (32, 32), "seed": 2},
}


def checkpoint(name: str, file: Path, size: tuple[int, int]) -> nn.Module:
    """A file of timm's weights, with its classifier."""
    torch.manual_seed(5)
    options = {"img_size": size} if "vit" in name else {}
    module: nn.Module = timm.create_model(name.removeprefix("timm:"), num_classes=7, **options)
    save_file(module.state_dict(), file)
    return module.eval()


@pytest.mark.parametrize("name", list(TIMM))
def test_the_first_features_equal_timms(name: str, tmp_path: Path) -> None:
    size = TIMM[name]["size"]
    source = checkpoint(name, tmp_path / "weights.safetensors", size)
    config = load(
        {"model": {"encoder": name, "init": str(tmp_path / "weights.safetensors"), "stem": "original"}}
    )
    network = build_network(config, size, 3, 0)
    x = torch.randn(2, 3, *size)
    expected = source.forward_head(source.forward_features(x), pre_logits=True)
    assert torch.equal(network.encoder.module.eval()(x), expected)
    assert "head" in network.notes[0] or "fc" in network.notes[0]


@pytest.mark.parametrize("name", list(TIMM))
def test_three_rounds_continue_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    size, file = TIMM[name]["size"], tmp_path / "weights.safetensors"
    source = checkpoint(name, file, size)
    run = small_run(
        tmp_path / "run",
        rounds=3,
        **{
            "data.channels": 3,
            "data.size": size[0],
            "data.limit": 24,
            "model.encoder": name,
            "model.init": str(file),
            "model.stem": "original",
        },
    )
    losses = [line["loss"] for line in run.metrics]
    assert len(set(losses)) == 3
    start, end = (
        load_file(run.path / place) for place in ("checkpoints/start.safetensors", "encoder.safetensors")
    )
    given = source.state_dict()
    assert all(torch.equal(start[name], given[name]) for name in end)
    assert any(not torch.equal(end[name], given[name]) for name in end)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> fedssl.Run:
    return small_run(tmp_path_factory.mktemp("start") / "first", rounds=1, **{"data.mean": 0.3})


def test_a_run_starts_from_another_runs_encoder(first: fedssl.Run, tmp_path: Path) -> None:
    overrides = {key: value for key, value in SMALL.items() if key != "model"}
    again = fedssl.run(
        {**overrides, "model": {"init": str(first.path), "projector_hidden": 16, "projector_out": 8}},
        out=tmp_path / "again",
        quiet=True,
        seed=1,
    )
    assert again.config.model.width == 4
    assert again.config.data.mean == 0.3
    start = load_file(again.path / "checkpoints" / "start.safetensors")
    ended = load_file(first.path / "encoder.safetensors")
    assert all(torch.equal(start[name], ended[name]) for name in ended)
    assert again.metrics[-1]["loss"] != again.metrics[0]["loss"]
    assert again.directory.encoder_description()["init"] == str(first.path.resolve())


@pytest.mark.usefixtures("warm_workers")
def test_a_started_run_does_not_need_the_weights(first: fedssl.Run, tmp_path: Path) -> None:
    shutil.copytree(first.path, tmp_path / "start")
    run = small_run(tmp_path / "run", **{"model.init": str(tmp_path / "start"), "rounds": 2})
    workers = small_run(
        tmp_path / "workers",
        **{"model.init": str(tmp_path / "start"), "rounds": 2, "engine.workers": 2, "engine.threads": 1},
    )
    shutil.rmtree(tmp_path / "start")
    (run.path / "result.json").unlink()
    fedssl.resume(run.path, quiet=True)
    assert run.probe("knn")["accuracy"] >= 0
    for name, value in load_file(run.path / "encoder.safetensors").items():
        assert torch.equal(value, load_file(workers.path / "encoder.safetensors")[name])


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({"width": 8}, r"does not fit model\.encoder=resnet8: .*these weights are of model\.width=4"),
        ({"encoder": "vit_tiny"}, r"tensors are missing there: pos_embed.*of model\.encoder=resnet8"),
    ],
)
def test_weights_that_do_not_fit(
    first: fedssl.Run, model: dict[str, object], text: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=text):
        fedssl.run({**SMALL, "model": {**model, "init": str(first.path)}}, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_the_command_line_reports_the_problem(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from fedssl.cli import main

    assert main(["run", *arguments(**{"model.init": "hf:someone/vit"}), "--out", str(tmp_path / "run")]) == 2
    assert "hf download someone/vit" in capfd.readouterr().err
