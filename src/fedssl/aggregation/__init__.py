"""Server rules: one file each, pure functions on tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedssl.registry import Registry

if TYPE_CHECKING:
    from fedssl.aggregation.rule import Rule

AGGREGATIONS = Registry(
    "aggregation",
    {
        "fedavg": "fedssl.aggregation.fedavg:FedAvg",
    },
)


def build(name: str, **options: Any) -> Rule:
    """The rule of that name: `rule(global_state, uploads)` gives the new global state."""
    from fedssl.options import choose

    rule: Rule = choose(AGGREGATIONS, {"name": name, **options}, "aggregation")
    return rule
