"""Poisoned running statistics of normalization layers under unremarkable parameters."""

from __future__ import annotations

from pydantic import Field

from fedssl.attacks.attack import NAME, Knowledge, Poison, moved, norm
from fedssl.methods.client import Client
from fedssl.state import Upload


class Statistics(Poison):
    """The mean of the honest parameters, with statistics as far off as the server's limits allow.

    All statistics grow by the same amount, so that variances are large and no check finds negative ones: the
    encoder's activations shrink to almost nothing.
    """

    name: str = Field("statistics", description=NAME)

    def forge(self, own: Upload, known: Knowledge, client: Client) -> Upload:
        mean = known.mean(known.parameters)
        names = [name for name in sorted(known.statistics) if known.sent[name].is_floating_point()]
        count = max(1, sum(known.sent[name].numel() for name in names))
        room = max(0.0, known.reach**2 - norm(mean) ** 2) ** 0.5
        raised = {name: own.state[name] - known.sent[name] + room / count**0.5 for name in names}
        return moved(own, known.sent, {**mean, **raised})
