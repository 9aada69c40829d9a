"""Group normalization instead of batch normalization, so that images of a batch are independent."""

from __future__ import annotations

from typing import Any

from torch import nn

from fedssl.errors import ConfigError

GROUPS, LEAST = 32, 4  # at most this many groups, of at least this many channels


def group_norm(channels: int) -> nn.GroupNorm:
    """Group normalization (Wu and He 2018) for this many channels."""
    return nn.GroupNorm(num_groups(channels), channels)


def num_groups(channels: int) -> int:
    """The largest number of equal groups, up to 32, that have four channels or more."""
    most = max(1, min(GROUPS, channels // LEAST))
    return next(groups for groups in range(most, 0, -1) if channels % groups == 0)


def replace_batch_norm(module: nn.Module, encoder: str) -> list[dict[str, Any]]:
    """Replace batch by group normalization, in place.

    Args:
        module: an encoder.
        encoder: its name, for messages.

    Returns:
        The changes, as an encoder's description lists them.
    """
    changes = []
    for path, part in list(module.named_modules()):
        if type(part) is nn.BatchNorm2d:
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, group_norm(part.num_features))
            kwargs = {"num_groups": num_groups(part.num_features), "num_channels": part.num_features}
            changes.append({"module": path, "replace": "torch.nn.GroupNorm", "kwargs": kwargs})
    left = {
        type(part).__name__ for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)
    }
    if left:
        raise ConfigError(
            f"model.norm=group: model.encoder={encoder} has {', '.join(sorted(left))}, which cannot be "
            "replaced by group normalization; choose another encoder"
        )
    return changes
