"""Encoders by name: small ResNets, vision transformers, and all models of timm.

Weights are drawn from torch's global generator; seed it for reproducible weights.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fedssl.errors import ConfigError, did_you_mean
from fedssl.models import ENCODERS
from fedssl.models.describe import describe, rebuild
from fedssl.models.norms import replace_batch_norm
from fedssl.models.options import ModelConfig
from fedssl.models.pointwise import replace_narrow_strides
from fedssl.models.resnet import Basic, Bottleneck, ResNet

SMALL = 96  # below this side, stems designed for 224 pixels discard most of the image


@dataclass(frozen=True)
class Encoder:
    """A module that maps [B, C, H, W] to [B, features], and a description to rebuild it without fedssl."""

    module: nn.Module
    features: int
    description: dict[str, Any] = field(default_factory=dict)


def build_encoder(config: ModelConfig, size: tuple[int, int], channels: int) -> Encoder:
    """Build the encoder of `model.encoder` for images of this size (height, width) and channels."""
    encoder = _named(config, size, channels)
    if config.norm == "batch":
        return encoder
    changes = replace_batch_norm(encoder.module, config.encoder)
    description = {**encoder.description, "changes": [*encoder.description.get("changes", []), *changes]}
    return Encoder(encoder.module, encoder.features, description)


def _named(config: ModelConfig, size: tuple[int, int], channels: int) -> Encoder:
    """The encoder with its original normalization layers."""
    name = config.encoder
    if name.startswith("timm:"):
        return from_timm(config, size, channels)
    if name not in ENCODERS and ":" not in name:
        import timm

        if timm.is_model(name):
            raise ConfigError(f"unknown encoder {name!r}: did you mean timm:{name}")
    encoder = ENCODERS.get(name)(config, size, channels)
    if not isinstance(encoder, Encoder):
        raise ConfigError(f"encoder {name!r} must return a fedssl Encoder, not {type(encoder).__name__}")
    return encoder


def resnet8(config: ModelConfig, size: tuple[int, int], channels: int) -> Encoder:
    """Three stages of one basic block: widths w, 2w, 4w."""
    return _resnet(config, channels, Basic, (1, 1, 1))


def resnet18(config: ModelConfig, size: tuple[int, int], channels: int) -> Encoder:
    """ResNet-18 with the papers' stem for CIFAR: 3×3, no max-pool."""
    return _resnet(config, channels, Basic, (2, 2, 2, 2))


def resnet50(config: ModelConfig, size: tuple[int, int], channels: int) -> Encoder:
    """ResNet-50 with the papers' stem for CIFAR: 3×3, no max-pool."""
    return _resnet(config, channels, Bottleneck, (3, 4, 6, 3))


def _resnet(
    config: ModelConfig, channels: int, block: type[Basic] | type[Bottleneck], depths: Sequence[int]
) -> Encoder:
    width, stride = config.width, config.stem_stride
    if width % 2:
        raise ConfigError(f"model.width={width}: timm's ResNet takes even widths; try {width + 1}")
    module = ResNet(block, depths, width, channels, stride)
    # timm's plain stem is always 64 wide; its deep one is twice `stem_width`, and is replaced by ours. Its
    # forward pass expects four stages.
    kwargs = {
        "block": {"import": f"timm.models.resnet.{'BasicBlock' if block is Basic else 'Bottleneck'}"},
        "layers": list(depths),
        "channels": [width * 2**stage for stage in range(len(depths))],
        "stem_type": "deep",
        "stem_width": width // 2,
        "in_chans": channels,
        "num_classes": 0,
    }
    stem = _convolution(channels, width, kernel=3, stride=stride, padding=1, bias=False)
    changes = [{"module": "conv1", **stem}, {"module": "maxpool", **_IDENTITY}]
    changes += [{"module": f"layer{missing}", **_IDENTITY} for missing in range(len(depths) + 1, 5)]
    description = describe("timm.models.resnet.ResNet", kwargs, module.num_features, changes)
    return Encoder(module, module.num_features, description)


def vit_tiny(config: ModelConfig, size: tuple[int, int], channels: int) -> Encoder:
    """192 wide, 12 blocks, 3 heads; features are the mean of the normalized patch tokens."""
    return _vit(config, size, channels, width=192, heads=3)


def vit_small(config: ModelConfig, size: tuple[int, int], channels: int) -> Encoder:
    """384 wide, 12 blocks, 6 heads; features are the mean of the normalized patch tokens."""
    return _vit(config, size, channels, width=384, heads=6)


def _vit(config: ModelConfig, size: tuple[int, int], channels: int, width: int, heads: int) -> Encoder:
    """Without a class token, which a masked auto-encoder would not train."""
    check_patch(config.patch, size)
    kwargs = {
        "img_size": list(size),
        "patch_size": config.patch,
        "in_chans": channels,
        "num_classes": 0,
        "embed_dim": width,
        "depth": 12,
        "num_heads": heads,
        "class_token": False,
        "global_pool": "avg",
        "fc_norm": False,
    }
    description = describe("timm.models.vision_transformer.VisionTransformer", kwargs, width)
    return Encoder(rebuild(description), width, description)


def check_patch(patch: int, size: tuple[int, int]) -> None:
    """Raise a ConfigError unless patches cover the image, since timm ignores the rest."""
    if size[0] % patch or size[1] % patch:
        raise ConfigError(
            f"model.patch={patch} does not divide images of {size[0]}×{size[1]}; "
            "set model.patch to a divisor, or data.size to a multiple"
        )


def from_timm(config: ModelConfig, size: tuple[int, int], channels: int) -> Encoder:
    """Build `timm:NAME`, untrained; with `model.stem=fine`, with a finer stem or smaller patches."""
    import timm

    name = config.encoder.removeprefix("timm:")
    if not timm.is_model(name.split(".")[0]):
        near = difflib.get_close_matches(name, timm.list_models(), n=1)
        hint = did_you_mean(name, near) if near else "timm.list_models() names them"
        raise ConfigError(f"unknown timm model {name!r}: {hint}")
    kwargs: dict[str, Any] = {"model_name": name, "pretrained": False, "num_classes": 0, "in_chans": channels}
    small = min(size) < SMALL
    fine = config.stem == "fine" or (config.stem == "auto" and small)
    attempts = [(kwargs, fine)]
    if getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False):
        kwargs["img_size"] = list(size)
        if fine:
            check_patch(config.patch, size)
            attempts.insert(0, ({**kwargs, "patch_size": config.patch}, False))
    problem: Exception | None = None
    for attempt, finer in attempts:
        try:
            return _created(attempt, finer, size, channels)
        except Exception as error:  # timm raises various types for a size that does not fit
            problem = error
    remedy = f"set data.size to {SMALL} or more" if small else "try another data.size"
    raise ConfigError(
        f"model.encoder={config.encoder} does not take images of {size[0]}×{size[1]} ({problem}); {remedy}"
    ) from problem


def _created(kwargs: dict[str, Any], finer: bool, size: tuple[int, int], channels: int) -> Encoder:
    description = describe("timm.create_model", kwargs, features=0)
    module = rebuild(description)
    changes = finer_stem(module) if finer else []
    if changes:
        description = {**description, "changes": changes}
        module = rebuild(description)
        for change in changes:
            replaced = module.get_submodule(change["module"])
            if "replace" in change and isinstance(replaced, nn.Conv2d):
                nn.init.kaiming_normal_(replaced.weight, mode="fan_out", nonlinearity="relu")
    with torch.no_grad():
        out = module.eval()(torch.zeros(2, channels, *size))
    if out.ndim != 2:
        raise ValueError(f"it gives a tensor of shape {tuple(out.shape)}, not one vector per image")
    features = int(out.shape[1])
    replace_narrow_strides(module)
    return Encoder(module.train(), features, {**description, "features": features})


def finer_stem(module: nn.Module) -> list[dict[str, Any]]:
    """Changes after which the stem keeps more of a small image.

    The stem is what comes before the fourth convolution. Its first strided convolution gets stride 1
    (and 3×3 if it was larger) or, if it cuts patches, patches of half the side; its max-pool goes.
    """
    changes: list[dict[str, Any]] = []
    convolutions = 0
    for path, part in module.named_modules():
        if isinstance(part, nn.Conv2d):
            convolutions += 1
            if convolutions > 3:
                break
            if not changes and max(part.stride) > 1:
                changes.append({"module": path, **_finer(part)})
        elif isinstance(part, nn.MaxPool2d):
            changes.append({"module": path, **_IDENTITY})
            break
    return changes


def _finer(conv: nn.Conv2d) -> dict[str, Any]:
    kernel, bias, is_plain = conv.kernel_size[0], conv.bias is not None, type(conv) is nn.Conv2d
    if is_plain and conv.kernel_size == conv.stride:
        return _convolution(conv.in_channels, conv.out_channels, kernel // 2, kernel // 2, 0, bias)
    if is_plain and kernel > 3:
        return _convolution(conv.in_channels, conv.out_channels, 3, 1, 1, bias)
    return {"set": {"stride": [1, 1]}}


_IDENTITY: dict[str, Any] = {"replace": "torch.nn.Identity", "kwargs": {}}


def _convolution(
    inputs: int, outputs: int, kernel: int, stride: int, padding: int, bias: bool
) -> dict[str, Any]:
    kwargs = {
        "in_channels": inputs,
        "out_channels": outputs,
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "bias": bias,
    }
    return {"replace": "torch.nn.Conv2d", "kwargs": kwargs}
