"""`model.init`: where weights are found, their metadata, and error messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from tests.small import small_run

from fedssl.errors import ConfigError
from fedssl.models.options import ModelConfig
from fedssl.models.weights import find_weights

HUB = "timm/resnet18.a1_in1k"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of huggingface_hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def downloaded(hub: Path, repository: str, **files: object) -> Path:
    """The cache after `hf download`."""
    folder = hub / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("c0ffee")
    snapshot = folder / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    save_file({"w": torch.ones(2)}, snapshot / "model.safetensors")
    for name, content in files.items():
        (snapshot / f"{name}.json").write_text(json.dumps(content))
    return snapshot


def test_timm_s_weights_are_taken_from_the_cache(hub: Path) -> None:
    snapshot = downloaded(hub, HUB)
    found = find_weights(ModelConfig(encoder="timm:resnet18", init="timm"))
    assert found.file == snapshot / "model.safetensors"
    assert (found.mean, found.std) == (
        timm.data.IMAGENET_DEFAULT_MEAN,
        timm.data.IMAGENET_DEFAULT_STD,
    )
    assert torch.equal(found.tensors()["w"], torch.ones(2))


def test_a_repository_describes_its_encoder(hub: Path) -> None:
    config = {"architecture": "vit_small_patch14_dinov2", "pretrained_cfg": {"mean": [0.5], "std": [0.2]}}
    downloaded(hub, "someone/vit", config=config)
    found = find_weights(ModelConfig(init="hf:someone/vit"))
    assert found.model == {"encoder": "timm:vit_small_patch14_dinov2"}
    assert (found.mean, found.std) == ((0.5,), (0.2,))


def test_a_run_describes_its_encoder(tmp_path: Path) -> None:
    small_run(tmp_path / "run", rounds=1)
    found = find_weights(ModelConfig(init=str(tmp_path / "run")))
    assert (found.model["encoder"], found.model["width"]) == ("resnet8", 4)
    assert (found.mean, found.std) == ((0.5,), (0.25,))


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({"init": "resnet.pth"}, r"resnet\.pth: no run folder or file of that name"),
        ({"init": "pickle.pth"}, "not a .safetensors file. Pickled weights can run code"),
        ({"init": "empty"}, r"empty: no run: no config\.toml"),
        ({"init": "broken.safetensors"}, r"broken\.safetensors cannot be read"),
        ({"init": "tim"}, "no run folder or file of that name; did you mean timm"),
        ({"init": "timm"}, "timm has no weights of resnet8; set model.encoder=timm:NAME"),
        ({"init": "timm", "encoder": "timm:resnet18"}, f"`hf download {HUB} model.safetensors`"),
        ({"init": "timm", "encoder": "timm:zzz"}, r"timm has no weights of zzz; timm\.list_pretrained"),
        ({"init": "hf:someone/vit"}, "`hf download someone/vit --include"),
        ({"init": "hf:no/such/name"}, "model.init=hf:no/such/name: "),
    ],
)
def test_missing_weights_are_an_error(
    model: dict[str, str], text: str, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pickle.pth").write_bytes(b"")
    (tmp_path / "broken.safetensors").write_bytes(b"no header")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=text):
        find_weights(ModelConfig(**model)).tensors()
