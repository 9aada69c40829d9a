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
        "fedexp": "fedssl.aggregation.fedexp:FedExP",
        "fixed-norms": "fedssl.aggregation.fixed_norms:FixedNorms",
        "loss": "fedssl.aggregation.loss:Loss",
        "euc": "fedssl.aggregation.euc:Euc",
        "m-dawa": "fedssl.aggregation.m_dawa:MDawa",
        "l-dawa": "fedssl.aggregation.l_dawa:LDawa",
        "l-dawa-fedavg": "fedssl.aggregation.l_dawa_fedavg:LDawaFedAvg",
        "l-dawa-loss": "fedssl.aggregation.l_dawa_loss:LDawaLoss",
        "median": "fedssl.aggregation.median:Median",
        "trimmed-mean": "fedssl.aggregation.trimmed_mean:TrimmedMean",
        "krum": "fedssl.aggregation.krum:Krum",
        "fltrust": "fedssl.aggregation.fltrust:FLTrust",
        "centered-clipping": "fedssl.aggregation.centered_clipping:CenteredClipping",
    },
    base="fedssl.aggregation.rule:Rule",
)


def build(name: str, **options: Any) -> Rule:
    """Build an aggregation rule.

    Args:
        name: a rule that `fedssl list aggregations` shows, or the path of a class: `./file.py:Class`.
        options: the rule's own options, which are the keys of the config section `aggregation`.

    Returns:
        The rule. `rule(global_state, uploads)` returns the new global state, a tensor by name, and changes
        neither argument.

    Raises:
        ConfigError: for an unknown name, option or value.

    Example:
        >>> rule = fedssl.aggregation.build("l-dawa")
        >>> state = rule(state, [fedssl.Upload(client=0, state=trained, num_samples=10, loss=0.3)])
    """
    from fedssl.options import choose

    rule: Rule = choose(AGGREGATIONS, {"name": name, **options}, "aggregation")
    return rule
