"""The version of the package, and of the numbers that it computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__version__ = "0.1.0"


class Change(NamedTuple):
    """A code change that alters the numbers of some runs.

    Attributes:
        version: the version of the numerics since this change.
        configs: config values of affected runs, such as {"method.name": "featarc"}; empty: all.
        why: the reason shown for results that are out of date.
    """

    version: int
    configs: Mapping[str, Any]
    why: str


# Maintained by hand: append a change here whenever code alters the bits of a run, and name the affected runs.
# Stored results of those runs are then shown as stale, and `fedssl reproduce` trains them again.
_SCALED = "BatchNorm statistics are now recalibrated before probes if the rule scales weights"
_PADPAF = "the networks, label maps and drawn labels of PaDPaF now follow its authors' code"
_LOSS = "losses and views now draw from separate random streams"
CHANGES: Sequence[Change] = (
    Change(2, {"objective.name": "gan"}, _PADPAF),
    Change(2, {"objective.name": "conditional-gan"}, _PADPAF),
    Change(2, {"objective.name": "vae"}, _PADPAF),
    Change(2, {"data.name": "simpson"}, "every seed now draws its own points"),
    Change(2, {"data.name": "simpson-cluttered"}, "every seed now draws its own points"),
    Change(2, {"partition.scheme": "label-drop"}, "partition.balanced is now off by default"),
    Change(3, {"objective.name": "mae"}, _LOSS),
    Change(3, {"objective.name": "sigreg"}, _LOSS),
    Change(2, {"aggregation.name": "m-dawa"}, _SCALED),
    Change(2, {"aggregation.name": "l-dawa"}, _SCALED),
    Change(2, {"aggregation.name": "l-dawa-fedavg"}, _SCALED),
    Change(2, {"aggregation.name": "l-dawa-loss"}, _SCALED),
    Change(
        2,
        {"method.name": "fedema", "method.divergence": "reference-code"},
        "divergence=reference-code now leaves out shortcuts, as the authors' code does",
    ),
)
NUMERICS = max((change.version for change in CHANGES), default=1)


def change_since(
    version: int, config: Mapping[str, Any], changes: Sequence[Change] = CHANGES
) -> Change | None:
    """Return the last change after that version that affects runs with this config (keys with dots)."""
    since = [
        change
        for change in changes
        if change.version > version and all(config.get(key) == value for key, value in change.configs.items())
    ]
    return since[-1] if since else None
