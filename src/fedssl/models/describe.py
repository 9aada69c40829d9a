"""Descriptions of encoders from which timm can rebuild them without fedssl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fedssl.models.rebuild import rebuild as rebuild
from fedssl.normalization import Levels, per_channel

if TYPE_CHECKING:
    from fedssl.models.encoders import Encoder


def describe(
    factory: str, kwargs: Mapping[str, Any], features: int, changes: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """A JSON description of an encoder: call `factory` with `kwargs`, then apply the changes in order.

    A value `{"import": "a.b.C"}` stands for the object of that name. A change sets attributes of
    a module, or replaces it:
    `{"module": "conv_stem", "set": {"stride": [1, 1]}}`,
    `{"module": "maxpool", "replace": "torch.nn.Identity", "kwargs": {}}`.
    """
    return {
        "format": 1,
        "library": "timm",
        "timm_version": version("timm"),
        "factory": factory,
        "kwargs": dict(kwargs),
        "changes": [dict(change) for change in changes],
        "features": features,
    }


def describe_with_input(
    encoder: Encoder,
    mean: Levels,
    std: Levels,
    size: tuple[int, int],
    channels: int,
    resize: str = "squash",
    window: Any = "auto",
) -> dict[str, Any]:
    """Describe an encoder with its input: pixels in [0, 1] of this size, normalized by mean and std.

    `resize` is how images that are not square are resized: "squash" or "crop"; `window` is `data.window`,
    the values that become 0 and 1, and is omitted if it is "auto".
    """
    given = {
        "size": list(size),
        "channels": channels,
        "order": {1: "grey", 3: "RGB"}.get(channels, f"{channels} channels"),
        "mean": per_channel(mean, channels),
        "std": per_channel(std, channels),
        "interpolation": "bilinear",
        "antialias": True,
        "resize": resize,
    }
    if window != "auto":
        given["window"] = window if isinstance(window, str) else list(window)
    return {**encoder.description, "input": given}
