"""LoRA (Hu et al. 2022): low-rank adapters in an encoder with frozen weights, by peft.

An adapted layer computes W·x + s·B·(A·x). Only A and B are trained, or B alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fedssl.errors import ConfigError
from fedssl.extras import require
from fedssl.models.model import is_normalization
from fedssl.models.stages import keep_statistics
from fedssl.state import State

ADAPTER = "default"  # peft's name of the adapter
BASE = "base_layer"  # peft's name of the adapted layer


def add_adapters(encoder: nn.Module, rank: int, scale: float, train_a: bool) -> None:
    """Add adapters to every layer that `adaptable` names; all other tensors are frozen.

    Args:
        encoder: changed in place. A is drawn from torch's global generator, B is zero.
        rank: of the adapters.
        scale: s, the factor of B·A.
        train_a: train A and B; false: only B.
    """
    require("peft", "adapters", f"train.lora={rank}")
    import peft

    names = adaptable(encoder)
    if not names:
        raise ConfigError(f"train.lora={rank}: this encoder has no trained layers for adapters")
    config = peft.LoraConfig(r=rank, lora_alpha=scale * rank, target_modules=names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about save formats of language models
        peft.inject_adapter_in_model(config, encoder, adapter_name=ADAPTER)
    for _, layer in adapted(encoder):
        layer.lora_A.requires_grad_(train_a)
        layer.lora_B.requires_grad_(True)
    for module in list(encoder.modules()):
        if is_normalization(module) and any(True for _ in module.buffers(recurse=False)):
            keep_statistics(module)


def adaptable(encoder: nn.Module) -> list[str]:
    """Paths of trained linear layers and convolutions, except the first (the stem) and grouped ones."""
    kinds = (nn.Linear, nn.Conv2d)
    layers = {path: module for path, module in encoder.named_modules() if isinstance(module, kinds)}
    return [
        path
        for path, module in list(layers.items())[1:]
        if module.weight.requires_grad and getattr(module, "groups", 1) == 1
    ]


def adapted(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Path and layer of every adapter in a module."""
    for path, layer in module.named_modules():
        if isinstance(getattr(layer, "lora_A", None), nn.ModuleDict):
            yield path, layer


def factor_names(module: nn.Module) -> list[tuple[str, str]]:
    """Names of A and B of every adapter."""
    return [
        (f"{path}.lora_A.{ADAPTER}.weight", f"{path}.lora_B.{ADAPTER}.weight") for path, _ in adapted(module)
    ]


@torch.no_grad()
def merged_state(encoder: nn.Module) -> State:
    """The tensors of an encoder with s·B·A merged into the weights.

    The names are those before `add_adapters`; without adapters it is the state dict.
    """
    merged: State = {}
    layers = dict(adapted(encoder))
    for name, value in encoder.state_dict().items():
        path, found, rest = name.rpartition(f".{BASE}.")
        if found and path in layers:
            merged[f"{path}.{rest}"] = value + _product(layers[path], value) if rest == "weight" else value
        elif not any(name.startswith((f"{path}.lora_A.", f"{path}.lora_B.")) for path in layers):
            merged[name] = value
    return merged


def _product(layer: Any, weight: Tensor) -> Tensor:
    """s·B·A in the shape of the layer's weight."""
    a, b = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
    product: Tensor = layer.scaling[ADAPTER] * multiply(a, b)
    return product.view_as(weight)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """B·A as a matrix [outputs, inputs × kernel], for linear layers and convolutions."""
    return b.flatten(1) @ a.flatten(1)
