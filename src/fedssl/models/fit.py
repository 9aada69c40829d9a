"""Adapt the weights of an encoder to other images: patches, positions, channels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fedssl.errors import ConfigError
from fedssl.state import State

POSITIONS = "pos_embed"
# Tensors at the start of a sequence that have their own positions, by timm's names.
PREFIXES = ("cls_token", "dist_token")
NAMED = 3  # tensors that an error names


def fitted(given: State, module: nn.Module) -> tuple[State, list[str]]:
    """Select the tensors that `module` needs from `given`; also describe what had to be changed.

    Names may have a prefix in common (`module.`, `encoder.`). Tensors that the module does not have (a
    classifier) are left out. The first convolution is fitted to other channels and, if it cuts patches, to
    another size of patches; position embeddings are interpolated to another grid.

    Raises:
        ConfigError: tensors are missing, or do not fit.
    """
    wanted = module.state_dict()
    named, notes = _own_names(given, wanted, module)
    missing = [name for name in wanted if name not in named and not name.endswith("num_batches_tracked")]
    if missing:
        first = f"{', '.join(missing[:NAMED])}{' …' if len(missing) > NAMED else ''}"
        raise ConfigError(f"{len(missing)} of {len(wanted)} tensors are missing there: {first}")
    state, wrong = {}, []
    for name, value in wanted.items():
        tensor = named.get(name, value).to(value.dtype)
        if tensor.shape != value.shape:
            tensor, note = _reshaped(name, tensor, value, module, named)
            if note:
                notes.append(note)
            else:
                wrong.append(f"{name} is {_shape(named[name])} there and {_shape(value)} here")
        state[name] = tensor
    if wrong:
        raise ConfigError(
            f"{len(wanted) - len(wrong)} of {len(wanted)} tensors fit: {'; '.join(wrong[:NAMED])}"
        )
    return state, notes


def _own_names(given: State, wanted: State, module: nn.Module) -> tuple[State, list[str]]:
    """The given tensors under the module's names, and the names of others."""
    prefix = _common_prefix(given, wanted)
    named = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
    if not wanted.keys() <= named.keys():
        named = _converted(named, module)
    left = [name for name in named if name not in wanted]
    several = " …" if len(left) > NAMED else ""
    note = f"{len(left)} tensors are not the encoder's, ignored: {', '.join(left[:NAMED])}{several}"
    return named, [note] if left else []


def _common_prefix(given: State, wanted: State) -> str:
    """The prefix of the module's names in a file: the one with which most of them are found."""
    first = next(iter(wanted))
    prefixes = {""} | {name[: -len(first)] for name in given if name.endswith(f".{first}")}
    return max(sorted(prefixes), key=lambda prefix: sum(prefix + name in given for name in wanted))


def _converted(named: State, module: nn.Module) -> State:
    """Convert the authors' names of tensors (MAE, DINOv2) by timm's conversion, if it has one."""
    import sys

    convert = getattr(sys.modules[type(module).__module__], "checkpoint_filter_fn", None)
    if convert is None:
        return named
    try:
        return dict(convert(dict(named), module))
    except Exception:  # it is made for known checkpoints, and may fail in any way on others
        return named


def _reshaped(
    name: str, tensor: Tensor, like: Tensor, module: nn.Module, given: Mapping[str, Tensor]
) -> tuple[Tensor, str]:
    """Convert a tensor to another shape; also returns a note, which is empty if it is impossible."""
    notes = []
    if name == _first_convolution(module) and tensor.ndim == 4 and len(tensor) == len(like):
        if tensor.shape[1] != like.shape[1]:
            notes.append(f"{tensor.shape[1]} channels to {like.shape[1]}")
            tensor = fit_channels(tensor, like.shape[1])
        if tensor.shape != like.shape and _cuts_patches(module, name):
            from timm.layers import resample_patch_embed

            notes.append(f"patches of {_shape(tensor[0, 0])} to {_shape(like[0, 0])}")
            tensor = resample_patch_embed(tensor, list(like.shape[2:]))
    elif name.endswith(POSITIONS) and tensor.ndim == 3 and tensor.shape[2] == like.shape[2]:
        fixed = fit_positions(tensor, module, given)
        if fixed.shape == like.shape:
            notes.append(f"{tensor.shape[1]} positions to {like.shape[1]}")
            tensor = fixed
    return (tensor, f"{name}: {', '.join(notes)}") if tensor.shape == like.shape else (tensor, "")


def fit_channels(weight: Tensor, channels: int) -> Tensor:
    """The weights [O, I, h, w] of a first convolution for another number of channels.

    For one channel they are summed: a gray image then gives what it gave as gray in every channel. For
    others they are repeated in turn and scaled by I / channels, which keeps the size of the output.
    """
    if channels == 1:
        return weight.sum(dim=1, keepdim=True)
    inputs = weight.shape[1]
    repeats = math.ceil(channels / inputs)
    return weight.repeat(1, repeats, 1, 1)[:, :channels] * (inputs / channels)


def fit_positions(positions: Tensor, module: Any, given: Mapping[str, Tensor]) -> Tensor:
    """Interpolate position embeddings [1, N, D] to the module's grid of patches."""
    from timm.layers import resample_abs_pos_embed

    count = positions.shape[1]
    prefix = sum(given[name].shape[1] for name in PREFIXES if name in given)
    prefix = prefix if math.isqrt(count - prefix) ** 2 == count - prefix else 0
    own = 0 if getattr(module, "no_embed_class", False) else getattr(module, "num_prefix_tokens", 0)
    grid = getattr(getattr(module, "patch_embed", None), "grid_size", None)
    if grid is None or math.isqrt(count - prefix) ** 2 != count - prefix or prefix < own:
        return positions
    resampled: Tensor = resample_abs_pos_embed(positions, list(grid), num_prefix_tokens=prefix)
    return torch.cat([resampled[:, :own], resampled[:, prefix:]], dim=1)


def _first_convolution(module: nn.Module) -> str:
    for path, part in module.named_modules():
        if isinstance(part, nn.Conv2d):
            return f"{path}.weight"
    return ""


def _cuts_patches(module: nn.Module, name: str) -> bool:
    conv = module.get_submodule(name.removesuffix(".weight"))
    return isinstance(conv, nn.Conv2d) and conv.kernel_size == conv.stride


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a number"
