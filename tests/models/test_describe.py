"""A description and a state dict are enough to rebuild the encoder without fedssl."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fedssl.models.rebuild
from fedssl.models.describe import describe_with_input
from fedssl.models.encoders import build_encoder
from fedssl.models.options import ModelConfig


def rebuild_alone(description: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """`rebuild` from its file as pasted text, where fedssl cannot be imported."""
    source = Path(fedssl.models.rebuild.__file__).read_text()
    with monkeypatch.context() as without:
        for name in [name for name in sys.modules if name.split(".")[0] == "fedssl"]:
            without.setitem(sys.modules, name, None)
        with pytest.raises(ImportError):
            importlib.import_module("fedssl.errors")
        namespace: dict[str, Any] = {}
        exec(source, namespace)
        module: nn.Module = namespace["rebuild"](description)
    return module


@pytest.mark.parametrize(
    "model",
    [
        {"encoder": "resnet8", "width": 6},
        {"encoder": "resnet8", "width": 4, "stem_stride": 2},
        {"encoder": "resnet18", "width": 4},
        {"encoder": "resnet50", "width": 4},
        {"encoder": "vit_tiny", "patch": 8},
        {"encoder": "timm:resnet10t"},
        {"encoder": "timm:mobilenetv3_small_050"},
        {"encoder": "timm:convnext_atto"},
        {"encoder": "timm:vit_tiny_patch16_224", "patch": 8},
    ],
    ids=lambda model: "-".join(str(value) for value in model.values()),
)
def test_rebuilt_without_fedssl(model: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    size = (32, 32)
    encoder = build_encoder(ModelConfig(**model), size, 1)
    module = encoder.module
    x = torch.randn(4, 1, *size)
    module(x)  # so that running statistics are not the first ones
    description = json.loads(json.dumps(encoder.description))
    again = rebuild_alone(description, monkeypatch)
    assert type(again).__module__.startswith("timm.")
    again.load_state_dict(module.state_dict())
    assert torch.equal(again.eval()(x), module.eval()(x))
    assert description["features"] == encoder.features


def test_the_description_is_complete() -> None:
    encoder = build_encoder(ModelConfig(width=4), (8, 12), 3)
    description = describe_with_input(encoder, mean=0.5, std=0.25, size=(8, 12), channels=3)
    assert description["input"] == {
        "size": [8, 12],
        "channels": 3,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.25, 0.25, 0.25],
        "order": "RGB",
        "interpolation": "bilinear",
        "antialias": True,
        "resize": "squash",
    }
    chosen = describe_with_input(encoder, 0.5, 0.25, size=(8, 12), channels=3, window=(0.0, 4095.0))
    assert chosen["input"]["window"] == [0.0, 4095.0]
    assert json.loads(json.dumps(description)) == description
    assert "input" not in encoder.description


def test_rebuild_is_short() -> None:
    assert len(inspect.getsource(fedssl.models.rebuild.rebuild).splitlines()) < 25
