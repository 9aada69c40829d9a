"""Stages of encoders: freezing, and learning rates by depth."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file
from tests.small import SMALL, digest, small_run
from timm.optim import param_groups_layer_decay
from torch import nn

from fedssl.config import load
from fedssl.engines.network import build_network
from fedssl.errors import ConfigError
from fedssl.methods.boundary import Boundary
from fedssl.methods.optimizers import Optimizer
from fedssl.methods.options import TrainConfig
from fedssl.methods.training import rate_scales
from fedssl.models.encoders import build_encoder
from fedssl.models.model import Model, Part, is_normalization
from fedssl.models.options import ModelConfig
from fedssl.models.stages import Frozen, depth_scales, freeze, stages

VIT = {"embed_dim": 8, "depth": 3, "num_heads": 2, "img_size": 8, "patch_size": 4, "num_classes": 0}


def test_a_resnet_has_a_stem_and_stages() -> None:
    found = stages(build_encoder(ModelConfig(encoder="resnet18", width=2), (8, 8), 3).module)
    by_stage = {stage: {name.split(".")[0] for name in found if found[name] == stage} for stage in range(5)}
    assert by_stage == {0: {"conv1", "bn1"}} | {stage: {f"layer{stage}"} for stage in range(1, 5)}


@pytest.mark.parametrize("blocks", [False, True])
def test_our_resnet_s_stages_are_timm_s(blocks: bool) -> None:
    encoder = build_encoder(ModelConfig(encoder="resnet18", width=64), (8, 8), 3).module
    assert stages(encoder, blocks) == stages(timm.create_model("resnet18", num_classes=0), blocks)


def test_rates_fall_with_depth_as_in_timm() -> None:
    vit = timm.create_model("vit_tiny_patch16_224", **VIT)
    model = Model(encoder=Part(vit), projector=Part(nn.Linear(8, 2)))
    found = depth_scales(model, 0.5)
    groups = param_groups_layer_decay(vit, layer_decay=0.5)
    names = {id(value): name for name, value in vit.named_parameters()}
    expected = {names[id(value)]: group["lr_scale"] for group in groups for value in group["params"]}
    top = expected["norm.weight"]  # timm counts the classifier, which we do not have, as a separate layer
    assert {name: found[f"encoder.{name}"] for name in expected} == {
        name: scale / top for name, scale in expected.items()
    }
    assert found["projector.weight"] == 1


def test_an_update_is_the_gradient_times_the_rate_of_its_depth() -> None:
    encoder = build_encoder(ModelConfig(width=4), (8, 8), 3).module
    model = Model(encoder=Part(encoder), projector=Part(nn.Linear(16, 2)))
    parameters = dict(model.named_parameters())
    before = {name: value.detach().clone() for name, value in parameters.items()}
    for value in parameters.values():
        value.grad = torch.ones_like(value)
    config = TrainConfig(momentum=0.0, weight_decay=0.0, layer_decay=0.5)
    scales = rate_scales(model, list(parameters.values()), config.layer_decay)
    Optimizer(list(parameters.values()), config, 0.8, scales=scales).step()
    moved = {name: float((before[name] - value.detach()).mean()) for name, value in parameters.items()}
    for name, rate in (
        ("encoder.conv1.weight", 0.1),
        ("encoder.layer1.0.conv1.weight", 0.2),
        ("encoder.layer3.0.bn2.bias", 0.8),
        ("projector.weight", 0.8),
    ):
        assert moved[name] == pytest.approx(rate, abs=1e-6)


def test_frozen_stages_keep_parameters_and_statistics() -> None:
    encoder = build_encoder(ModelConfig(width=4), (8, 8), 3).module
    freeze(encoder, 2)
    copied = copy.deepcopy(encoder)
    before = copy.deepcopy(copied.state_dict())
    copied.train()(torch.randn(4, 3, 8, 8)).sum().backward()
    changed = {name for name, value in copied.state_dict().items() if not torch.equal(value, before[name])}
    assert {name.split(".")[0] for name in changed} == {"layer2", "layer3"}
    assert copied.conv1.weight.grad is None
    assert isinstance(copied.bn1, Frozen)
    assert isinstance(copied.bn1, nn.BatchNorm2d)
    assert is_normalization(copied.bn1)


@pytest.mark.parametrize("method", ["fedavg", "fedema", "fedbn", "fedrep", "ditto", "fedprox"])
def test_frozen_tensors_are_neither_sent_nor_changed(method: str, tmp_path: Path) -> None:
    keys = {"objective": "byol", "method": method, "rounds": 2, "train.freeze": 2}
    run = small_run(tmp_path / "run", **keys, **{"partition.classes": 5, "partition.clients": 2})
    config = run.config
    network = build_network(config, (8, 8), 1, 10)
    ended = load_file(run.path / "encoder.safetensors")
    frozen = {name for name in ended if name.startswith(("conv1", "bn1", "layer1"))}
    assert network.model.frozen == {f"encoder.{name}" for name in frozen}
    assert all(torch.equal(ended[name], network.initial[f"encoder.{name}"]) for name in frozen)
    assert any(not torch.equal(ended[name], network.initial[f"encoder.{name}"]) for name in ended)
    boundary = Boundary.of(config.method, network.model)
    assert not network.model.frozen & {*boundary.travels, *boundary.stays}
    assert run.metrics[-1]["failed"] == []


@pytest.mark.usefixtures("warm_workers")
def test_all_engines_agree_on_frozen_stages(tmp_path: Path) -> None:
    keys = {"objective": "byol", "method": "fedema", "rounds": 2, "train.freeze": 1, "train.layer_decay": 0.7}
    alone = small_run(tmp_path / "alone", **keys)
    workers = small_run(tmp_path / "workers", **keys, **{"engine.workers": 2})
    assert digest(alone) == digest(workers)


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"train.freeze": 5}, "train.freeze=5, but this encoder has only 4 stages"),
        ({"train.freeze": 1, "objective.name": "gan"}, "trains its own content encoder"),
    ],
)
def test_invalid_numbers_of_frozen_stages(keys: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        build_network(load(SMALL, keys), (8, 8), 1, 10)
