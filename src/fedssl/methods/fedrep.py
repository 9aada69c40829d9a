"""FedRep (Collins et al. 2021) without labels (FedStyle's appendix)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from torch import nn

from fedssl.methods.client import Client
from fedssl.methods.fedper import FedPer
from fedssl.methods.training import Training, train_locally


class FedRep(FedPer):
    """FedPer that trains the heads for E epochs with a frozen encoder, then the encoder with frozen heads.

    Freezing disables gradients only; BatchNorm statistics are still updated.
    """

    effort: ClassVar[float] = 1.4  # a frozen encoder needs no backward pass

    def train(self, client: Client) -> Training:
        below = {id(value) for value in client.model.part("encoder").parameters()}
        trained = client.objective.trained(client.model)
        encoder = [value for value in trained if id(value) in below]
        heads = [value for value in trained if id(value) not in below]
        with freeze(encoder):
            first = train_locally(client, parameters=heads, purpose="heads")
        with freeze(heads):
            second = train_locally(client, parameters=encoder)
        return Training(second.loss, first.steps + second.steps, first.views + second.views)


@contextmanager
def freeze(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Context manager in which these parameters take no gradient."""
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)
