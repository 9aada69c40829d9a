"""How often a trigger decides what a linear probe predicts (`attack.name=backdoor`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fedssl.attacks.attack import order
from fedssl.attacks.backdoor import reference, stamped
from fedssl.errors import ConfigError
from fedssl.evaluation.loaded import LoadedRun
from fedssl.evaluation.probes import Prober
from fedssl.evaluation.protocol import Protocol


class BackdoorSuccess(Protocol):
    """Share of test images with the trigger that a linear probe assigns to the attackers' class.

    The class is the one that the probe predicts for the attackers' reference image; images of that class do
    not count. For runs without attack, it measures the effect of the trigger alone.
    """

    def evaluate(self, run: LoadedRun) -> dict[str, Any]:
        if run.config.attack.name not in ("none", "backdoor"):
            raise ConfigError(f"attack.name={run.config.attack.name} has no trigger")
        prober, federation = run.prober(), run.federation
        leader = order(run.config.seed, federation.clients)[0]
        target = reference(federation.images_of(leader, run.config))

        def measure(encoder: nn.Module) -> float:
            return success(prober, encoder, target)

        found = run.measure(measure)
        return {
            "protocol": "backdoor",
            "success": sum(found) / len(found),
            "untrained": measure(run.models.untrained()),
        }


def success(prober: Prober, encoder: nn.Module, target: torch.Tensor) -> float:
    """The share for one encoder."""
    probe = prober.linear_probe(prober.features(encoder, prober.train))
    images = prober.test
    wanted = int(probe.predict(prober.features(encoder, replace(images, x=target, y=None)))[0])
    predicted = probe.predict(prober.features(encoder, replace(images, x=stamped(images.x))))
    assert images.y is not None
    others = images.y != wanted
    return float((predicted[others] == wanted).float().mean())
