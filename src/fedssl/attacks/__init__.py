"""Simulated attackers, for studies of robustness: `attack.name` and `attack.share`.

Attackers are clients of the run that train like the others and then replace their uploads. They collude and
know everything that the honest clients of the round upload, the strongest assumption of the literature.
"""

from fedssl.registry import Registry

ATTACKS = Registry(
    "attack",
    {
        "none": "fedssl.attacks.attack:Attack",
        "sign-flip": "fedssl.attacks.directions:SignFlip",
        "minus-mean": "fedssl.attacks.directions:MinusMean",
        "scale": "fedssl.attacks.directions:Scale",
        "alie": "fedssl.attacks.hidden:ALittleIsEnough",
        "min-max": "fedssl.attacks.hidden:MinMax",
        "statistics": "fedssl.attacks.statistics:Statistics",
        "backdoor": "fedssl.attacks.backdoor:Backdoor",
    },
    base="fedssl.attacks.attack:Attack",
)
