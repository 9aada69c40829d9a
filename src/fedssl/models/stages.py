"""The stages of an encoder, from input to output: to freeze the first ones, or to train them slower."""

from __future__ import annotations

import re
from weakref import WeakKeyDictionary

from torch import nn

from fedssl.errors import ConfigError
from fedssl.models.model import Model, is_normalisation
from fedssl.models.resnet import ResNet

_known: WeakKeyDictionary[nn.Module, dict[str, int]] = WeakKeyDictionary()


class Frozen(nn.Module):
    """Mixed into the class of a layer that stays in evaluation mode, so that its statistics do not move."""

    def train(self, mode: bool = True) -> Frozen:
        return super().train(False)


def stages(encoder: nn.Module, blocks: bool = False) -> dict[str, int]:
    """The stage of every parameter of an encoder, from 0.

    Args:
        encoder: one of ours, or of timm.
        blocks: count residual blocks of a convolutional network one by one, not by resolution. The blocks of
            a transformer are its stages in either case.
    """
    if isinstance(encoder, ResNet):
        return _of_resnet(encoder, blocks)
    matcher = getattr(encoder, "group_matcher", None)
    if matcher is None:
        raise ConfigError(f"a {type(encoder).__name__} does not say what its stages are")
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
    """Keep the first `count` stages as they are: parameters, and statistics of normalisation layers."""
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
        if is_normalisation(module) and own and frozen.issuperset(own):
            keep_statistics(module)


def keep_statistics(module: nn.Module) -> None:
    """Leave a layer in evaluation mode for good. Its class stays what `isinstance` asks for."""
    module.__class__ = type(f"Frozen{type(module).__name__}", (Frozen, type(module)), {})
    module.eval()


def frozen_names(model: Model) -> frozenset[str]:
    """Tensors of the encoder that training cannot change: there is no need to send or to store them."""
    encoder = model.part("encoder")
    still = {name for name, value in encoder.named_parameters() if not value.requires_grad}
    for path, module in encoder.named_modules():
        if isinstance(module, Frozen):
            still |= {f"{path}.{name}" for name in module.state_dict()}
    return frozenset(f"encoder.{name}" for name in still)


def depth_scales(model: nn.Module, decay: float) -> dict[str, float]:
    """For every parameter of a model, what its learning rate is multiplied by: decay^(blocks above it).

    Parameters outside of encoders have 1, as has an encoder's last block.
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
