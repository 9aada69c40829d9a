"""Attacks that send the honest direction reversed."""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field

from fedssl.attacks.attack import NAME, Knowledge, Poison, moved, norm
from fedssl.methods.client import Client
from fedssl.state import Upload


class SignFlip(Poison):
    """The attacker's own update reversed: w_g − factor·(w_k − w_g)."""

    name: str = Field("sign-flip", description=NAME)
    factor: float = Field(1.0, gt=0, description="length of the reversed update, in own updates")

    def forge(self, own: Upload, known: Knowledge, client: Client) -> Upload:
        reversed_ = {name: -self.factor * (own.state[name] - known.sent[name]) for name in known.parameters}
        return moved(own, known.sent, reversed_)


class MinusMean(Poison):
    """Minus the mean honest update, so long that the plain mean of all updates is zero: −(K−f)/f·mean."""

    name: str = Field("minus-mean", description=NAME)

    def forge(self, own: Upload, known: Knowledge, client: Client) -> Upload:
        times = (known.clients - known.attackers) / known.attackers
        opposite = {name: -times * update for name, update in known.mean(known.parameters).items()}
        return moved(own, known.sent, opposite)


class Scale(Poison):
    """Minus the mean honest update, as long and with as many claimed images as the server's limits allow."""

    name: str = Field("scale", description=NAME)

    def forge(self, own: Upload, known: Knowledge, client: Client) -> Upload:
        mean = known.mean(known.parameters)
        times = known.reach / max(norm(mean), 1e-30)
        sent = moved(own, known.sent, {name: -times * update for name, update in mean.items()})
        return replace(sent, num_samples=known.weight)
