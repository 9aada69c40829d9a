"""An upload is checked before it touches the aggregate."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fedssl.state import State, Upload


def problem_with(upload: Upload, expected: Mapping[str, Tensor]) -> str:
    """Why the upload cannot be used (empty: it can). `expected` has the right names and shapes."""
    if upload.num_samples < 1:
        return f"num_samples is {upload.num_samples}"
    if not math.isfinite(upload.loss):
        return f"loss is {upload.loss}"
    return _names(upload.state, expected) or _tensors(upload.state, expected)


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
