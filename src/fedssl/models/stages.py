"""The stages of an encoder from input to output, to freeze the first ones or scale their learning rate."""

from __future__ import annotations

import re
from weakref import WeakKeyDictionary

from torch import nn

from fedssl.errors import ConfigError
from fedssl.models.model import Model, is_normalization
from fedssl.models.resnet import ResNet

_known: WeakKeyDictionary[nn.Module, dict[str, int]] = WeakKeyDictionary()


class Frozen(nn.Module):
    """Mixin of layers that stay in evaluation mode, so that their statistics do not change."""

    def train(self, mode: bool = True) -> Frozen:
        return super().train(False)


def stages(encoder: nn.Module, blocks: bool = False) -> dict[str, int]:
    """The stage of every parameter of an encoder, from 0.

    Args:
        encoder: one of ours, or of timm.
        blocks: treat every residual block of a convolutional network as a stage, not every resolution. The
            stages of a transformer are always its blocks.
    """
    if isinstance(encoder, ResNet):
        return _of_resnet(encoder, blocks)
    matcher = getattr(encoder, "group_matcher", None)
    if matcher is None:
        raise ConfigError(f"the stages of {type(encoder).__name__} are unknown: it has no group_matcher")
    from timm.models import group_parameters

    found: dict[str, int] = group_parameters(encoder, matcher(coarse=not blocks), reverse=True)
    return found


def _of_resnet(encoder: ResNet, blocks: bool) -> dict[str, int]:
    """The stem, then layer1, layer2, … or their blocks."""
    pattern = r"layer\d+\.\d+" if blocks else r"layer\d+"
    found: dict[str, int] = {}
    seen = ["stem"]
    for name, _ in encoder.named_parameters():
        match = re.match(pattern, name)
        stage = match.group() if match else "stem"
        if stage not in seen:
            seen.append(stage)
        found[name] = seen.index(stage)
    return found


def freeze(encoder: nn.Module, count: int) -> None:
    """Freeze the first `count` stages: parameters, and statistics of normalization layers."""
    found = stages(encoder)
    total = max(found.values()) + 1
    if count > total:
        raise ConfigError(f"train.freeze={count}, but this encoder has only {total} stages")
    frozen = {name for name, stage in found.items() if stage < count}
    for name, parameter in encoder.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)
    for path, module in encoder.named_modules():
        own = [f"{path}.{name}".lstrip(".") for name, _ in module.named_parameters()]
        if is_normalization(module) and own and frozen.issuperset(own):
            keep_statistics(module)


def keep_statistics(module: nn.Module) -> None:
    """Keep a layer in evaluation mode permanently, as an instance of a subclass of its class."""
    module.__class__ = type(f"Frozen{type(module).__name__}", (Frozen, type(module)), {})
    module.eval()


def frozen_names(model: Model) -> frozenset[str]:
    """Names of the encoder's tensors that training cannot change, which are neither sent nor stored."""
    encoder = model.part("encoder")
    still = {name for name, value in encoder.named_parameters() if not value.requires_grad}
    for path, module in encoder.named_modules():
        if isinstance(module, Frozen):
            still |= {f"{path}.{name}" for name in module.state_dict()}
    return frozenset(f"encoder.{name}" for name in still)


def depth_scales(model: nn.Module, decay: float) -> dict[str, float]:
    """The learning-rate factor of every parameter: decay^(number of blocks above it).

    Parameters outside of encoders and those of the last block have 1.
    """
    scales = dict.fromkeys((name for name, _ in model.named_parameters()), 1.0)
    for path, module in model.named_modules():
        if path.rpartition(".")[2] == "encoder":
            if module not in _known:
                _known[module] = stages(module, blocks=True)
            found = _known[module]
            last = max(found.values())
            scales |= {f"{path}.{name}": decay ** (last - stage) for name, stage in found.items()}
    return scales
