"""Attacks that stay among the honest updates.

- A little is enough (Baruch et al. 2019): the mean of each coordinate, shifted by a few standard deviations.
- Min-max (Shejwalkar and Houmansadr 2021, §IV-B): as far along a direction as possible without being further
  from any honest update than the two most distant honest updates are from each other.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor

from fedssl.attacks.attack import NAME, Knowledge, Poison, moved
from fedssl.methods.client import Client
from fedssl.state import State, Upload


class ALittleIsEnough(Poison):
    """Mean − z·deviation of the honest updates, coordinate by coordinate."""

    name: str = Field("alie", description=NAME)
    z: float = Field(1.5, gt=0, description="standard deviations")

    def forge(self, own: Upload, known: Knowledge, client: Client) -> Upload:
        updates = known.updates(known.parameters)
        return moved(
            own,
            known.sent,
            {name: each.mean(dim=0) - self.z * deviation(each) for name, each in updates.items()},
        )


class MinMax(Poison):
    """Mean − γ·deviation of the honest updates, with the largest γ that stands out no more than they do."""

    name: str = Field("min-max", description=NAME)

    def forge(self, own: Upload, known: Knowledge, client: Client) -> Upload:
        updates = known.updates(known.parameters)
        mean = {name: each.mean(dim=0) for name, each in updates.items()}
        direction = {name: -deviation(each) for name, each in updates.items()}
        gamma = largest_step(updates, mean, direction)
        return moved(own, known.sent, {name: mean[name] + gamma * direction[name] for name in mean})


def deviation(updates: Tensor) -> Tensor:
    """The standard deviation of each coordinate over clients."""
    return updates.std(dim=0, correction=0)


def largest_step(updates: dict[str, Tensor], mean: State, direction: State) -> float:
    """The largest γ with ‖mean + γ·direction − u_i‖ ≤ max ‖u_j − u_k‖ for all i.

    For each i it is the positive root of γ²·‖p‖² + 2γ·p·d_i + ‖d_i‖² − D² = 0, with d_i = mean − u_i.
    """
    flat = torch.cat([each.flatten(1) for each in updates.values()], dim=1).double()
    center = torch.cat([each.flatten() for each in mean.values()]).double()
    step = torch.cat([each.flatten() for each in direction.values()]).double()
    widest = float(torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").max())
    length = float(step.dot(step))
    if not length:
        return 0.0
    apart = center - flat
    products, squares = (apart @ step).tolist(), apart.square().sum(dim=1).tolist()
    roots = [
        (-product + math.sqrt(max(0.0, product**2 - length * (square - widest**2)))) / length
        for product, square in zip(products, squares, strict=True)
    ]
    return float(max(0.0, min(roots)))
