"""Checks of an upload before it is aggregated."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from fedssl.state import State, Upload

# Far beyond the numbers of honest clients; sums of values within these bounds are finite.
MAX_VALUE = 1e12  # of a weight, a statistic, a loss, a further number
MAX_STEPS = 10**9  # change of a counter in a round


def problem_with(
    upload: Upload,
    expected: Mapping[str, Tensor],
    max_images: int = 0,
    variances: Collection[str] = (),
) -> str:
    """Check an upload.

    `max_images` is a key of `participation`; 0: no limit. `variances` are the names of running variances of
    normalization layers. How an upload compares with others is judged in `fedssl.engines.intake`.
    """
    return (
        _numbers(upload, max_images)
        or _names(upload.state, expected)
        or _tensors(upload.state, expected, variances)
        or _values(upload.values)
    )


def _numbers(upload: Upload, max_images: int) -> str:
    if upload.num_samples < 1:
        return f"num_samples is {upload.num_samples}"
    if max_images and upload.num_samples > max_images:
        return f"num_samples is {upload.num_samples:,}, but participation.max_images is {max_images:,}"
    if not abs(upload.loss) <= MAX_VALUE:
        return f"loss is {upload.loss}"
    return ""


def _names(state: State, expected: Mapping[str, Tensor]) -> str:
    missing, extra = expected.keys() - state.keys(), state.keys() - expected.keys()
    if missing:
        return f"{len(missing)} tensors are missing, among them {min(missing)}"
    if extra:
        return f"{len(extra)} tensors are unexpected, among them {min(extra)}"
    return ""


def _tensors(state: State, expected: Mapping[str, Tensor], variances: Collection[str]) -> str:
    for name, value in state.items():
        right = expected[name]
        if value.shape != right.shape:
            return f"{name} has shape {tuple(value.shape)}, not {tuple(right.shape)}"
        if value.dtype != right.dtype:
            return f"{name} is {value.dtype}, not {right.dtype}"
        if not value.numel():
            continue
        low, high = (bound.item() for bound in torch.aminmax(value))  # NaN if any value is
        if not value.is_floating_point():
            start, end = (int(bound) for bound in torch.aminmax(right))
            if low < start - MAX_STEPS or high > end + MAX_STEPS:
                return f"{name} has counted to {high if high > end else low:,}"
        elif not (math.isfinite(low) and math.isfinite(high)):
            return f"{name} is not finite"
        elif max(-low, high) > MAX_VALUE:
            return (
                f"{name} has values up to {max(-low, high):.3g}: training has diverged, or they are invalid"
            )
        elif low < 0 and name in variances:
            return f"{name} has a negative variance, {low:.3g}"
    return ""


def _values(values: Mapping[str, float]) -> str:
    for name, value in values.items():
        if isinstance(value, int | float) and not abs(value) <= MAX_VALUE:
            return f"{name} is {value}"
    return ""
