"""FedBN (Li et al.: Federated learning on non-IID features via local batch normalization, ICLR 2021)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedssl.methods.fedavg import FedAvg


class FedBN(FedAvg):
    """FedAvg whose clients keep their normalisation layers: any method does so with private_norm=true.

    Layers are found by module type, in encoder and heads alike; parameters and statistics stay. There is
    no global encoder, then: the result is the mean over clients, each with the global weights and its own
    layers. A client that never took part has these at their first values.
    """

    private_norm: Literal[True] = Field(True, description="that is FedBN; false would be method.name=fedavg")
