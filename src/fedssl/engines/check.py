"""An upload is checked before it touches the aggregate."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedssl.state import State, Upload, distance
from fedssl.vectors import flat, square


def problem_with(
    upload: Upload, expected: Mapping[str, Tensor], max_change: float = 0.0, max_images: int = 0
) -> str:
    """Why the upload cannot be used (empty: it can). `expected` has the right names and shapes.

    `max_change` and `max_images` are keys of `participation`; 0: no limit.
    """
    return (
        _numbers(upload, max_images)
        or _names(upload.state, expected)
        or _tensors(upload.state, expected)
        or _values(upload.values)
        or _change(upload.state, expected, max_change)
    )


def _numbers(upload: Upload, max_images: int) -> str:
    if upload.num_samples < 1:
        return f"num_samples is {upload.num_samples}"
    if max_images and upload.num_samples > max_images:
        return f"num_samples is {upload.num_samples:,}, and participation.max_images is {max_images:,}"
    if not math.isfinite(upload.loss):
        return f"loss is {upload.loss}"
    return ""


def _names(state: State, expected: Mapping[str, Tensor]) -> str:
    missing, extra = expected.keys() - state.keys(), state.keys() - expected.keys()
    if missing:
        return f"{len(missing)} tensors are missing, among them {min(missing)}"
    if extra:
        return f"{len(extra)} tensors do not belong there, among them {min(extra)}"
    return ""


def _tensors(state: State, expected: Mapping[str, Tensor]) -> str:
    for name, value in state.items():
        right = expected[name]
        if value.shape != right.shape:
            return f"{name} has shape {tuple(value.shape)}, not {tuple(right.shape)}"
        if value.dtype != right.dtype:
            return f"{name} is {value.dtype}, not {right.dtype}"
        # A sum is finite only if all are (inf and −inf make NaN); it reads the tensor once, without a mask.
        if value.is_floating_point() and not math.isfinite(float(value.sum(dtype=torch.float64))):
            return f"{name} is not finite"
    return ""


def _values(values: Mapping[str, float]) -> str:
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            return f"{name} is {value}"
    return ""


def _change(state: State, expected: Mapping[str, Tensor], limit: float) -> str:
    """Whether the upload is too far from the global model, in units of the global model's norm."""
    names = [name for name, right in expected.items() if right.is_floating_point()]
    norm = math.sqrt(sum(square(flat(expected[name])) for name in names)) if limit else 0.0
    if not norm:
        return ""
    change = distance(state, expected, names) / norm
    if change <= limit:
        return ""
    return f"is {change:,.1f} global norms from the global model: participation.max_change is {limit:g}"
