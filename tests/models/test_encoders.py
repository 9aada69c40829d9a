"""Encoders by name: shapes, finer stems for small images, and errors that say what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fedssl.errors import ConfigError
from fedssl.models import ENCODERS
from fedssl.models.encoders import build_encoder, finer_stem
from fedssl.models.options import ModelConfig

SMALL_TIMM = [
    "resnet34",
    "mobilenetv3_small_100",
    "efficientnet_b0",
    "convnext_atto",
    "vit_tiny_patch16_224",
    "regnetx_002",
]


@pytest.mark.parametrize("name", list(ENCODERS))
def test_the_number_of_features_is_correct(name: str) -> None:
    encoder = build_encoder(ModelConfig(encoder=name, width=4), (8, 12), 1)
    assert encoder.module(torch.zeros(3, 1, 8, 12)).shape == (3, encoder.features)
    assert encoder.module.training


@pytest.mark.parametrize("name", ["resnet8", "vit_tiny"])
def test_weights_depend_on_the_callers_seed(name: str) -> None:
    states = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        states.append(build_encoder(ModelConfig(encoder=name, width=4), (8, 8), 3).module.state_dict())
    first, again, other = states
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", SMALL_TIMM)
def test_timm_encoders_keep_a_map_of_small_images(name: str) -> None:
    encoder = build_encoder(ModelConfig(encoder=f"timm:{name}"), (32, 32), 1)
    x = torch.zeros(2, 1, 32, 32)
    with torch.no_grad():
        assert encoder.module(x).shape == (2, encoder.features)
        last = encoder.module.forward_features(x)
    assert min(last.shape[2:]) >= 2 if last.ndim == 4 else last.shape[1] >= 4


def test_timm_encoders_are_as_published_on_large_images() -> None:
    import timm

    encoder = build_encoder(ModelConfig(encoder="timm:resnet18"), (96, 96), 3)
    published = timm.create_model("resnet18", num_classes=0)
    published.load_state_dict(encoder.module.state_dict())
    x = torch.randn(2, 3, 96, 96)
    assert torch.equal(encoder.module.eval()(x), published.eval()(x))
    assert encoder.description["changes"] == []


def test_a_finer_stem_is_the_papers_one_for_a_resnet() -> None:
    import timm

    assert finer_stem(timm.create_model("resnet18")) == [
        {
            "module": "conv1",
            "replace": "torch.nn.Conv2d",
            "kwargs": {
                "in_channels": 3,
                "out_channels": 64,
                "kernel_size": 3,
                "stride": 1,
                "padding": 1,
                "bias": False,
            },
        },
        {"module": "maxpool", "replace": "torch.nn.Identity", "kwargs": {}},
    ]


def test_a_finer_stem_leaves_stages_alone() -> None:
    convolutions = [nn.Conv2d(4, 4, 3) for _ in range(3)]
    module = nn.Sequential(*convolutions, nn.Conv2d(4, 4, 3, stride=2), nn.MaxPool2d(2))
    assert finer_stem(module) == []


def test_vit_tiny_gives_the_mean_of_its_tokens() -> None:
    module = build_encoder(ModelConfig(encoder="vit_tiny", patch=4), (8, 12), 3).module
    x = torch.randn(2, 3, 8, 12)
    tokens = module.forward_features(x)
    assert tokens.shape == (2, 6, 192)
    torch.testing.assert_close(module(x), tokens.mean(dim=1))
    assert len(module.blocks) == 12
    assert module.blocks[0].attn.num_heads == 3


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({"encoder": "resnet81"}, "unknown encoder 'resnet81': did you mean resnet8"),
        ({"encoder": "resnet34"}, "did you mean timm:resnet34"),
        ({"encoder": "timm:resnet333"}, "unknown timm model 'resnet333': did you mean resnet33"),
        ({"encoder": "timm:zzz"}, "unknown timm model 'zzz': timm.list_models"),
        ({"encoder": "timm:repvgg_a0"}, "does not take images of 30×30 .*set data.size to 96 or more"),
        ({"encoder": "resnet8", "width": 5}, "model.width=5: .*even.* try 6"),
        ({"encoder": "vit_tiny", "patch": 4}, "model.patch=4 does not divide images of 30×30"),
        ({"encoder": "timm:vit_tiny_patch16_224", "patch": 4}, "model.patch=4 does not divide"),
    ],
)
def test_bad_encoders(model: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        build_encoder(ModelConfig(**model), (30, 30), 3)


def test_an_encoder_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n"
        "from fedssl.models.encoders import Encoder\n"
        "def flat(config, size, channels):\n"
        "    return Encoder(nn.Flatten(), channels * size[0] * size[1])\n"
        "def wrong(config, size, channels):\n"
        "    return nn.Flatten()\n"
    )
    encoder = build_encoder(ModelConfig(encoder=f"{file}:flat"), (2, 3), 4)
    assert encoder.module(torch.zeros(5, 4, 2, 3)).shape == (5, encoder.features)
    with pytest.raises(ConfigError, match="must return a fedssl Encoder, not Flatten"):
        build_encoder(ModelConfig(encoder=f"{file}:wrong"), (2, 3), 4)


def test_the_first_step_needs_no_slow_imports() -> None:
    """timm, torchvision and lightly, which import torch's compiler, take longer than torch itself."""
    program = """
import sys, torch
torch.set_num_threads(1)
from fedssl.models.options import ModelConfig
from fedssl.models.encoders import build_encoder
from fedssl.objectives import OBJECTIVES
config = ModelConfig(width=4)
for name in OBJECTIVES:
    kind = OBJECTIVES.get(name)
    generative = kind.__module__.startswith("fedssl.objectives.generative")
    if kind.__module__.startswith("fedssl.objectives") and name not in ("mae", "simmim") and not generative:
        encoder = build_encoder(config, (8, 8), 3)
        objective = kind(name=name)
        model = objective.build(encoder.module, encoder.features, config, classes=2)
        views = [torch.randn(4, 3, 8, 8)] * objective.num_views
        objective.loss(model, views, torch.tensor([0, 1, 0, 1]), torch.Generator()).backward()
        objective.after_step(model)
print(*{"timm", "torchvision", "lightly", "torch._dynamo"} & set(sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
