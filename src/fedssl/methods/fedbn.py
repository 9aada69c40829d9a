"""FedBN (Li et al.: Federated learning on non-IID features via local batch normalization, ICLR 2021)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedssl.methods.fedavg import FedAvg


class FedBN(FedAvg):
    """FedAvg whose clients keep their normalization layers, like any method with private_norm=true.

    Normalization layers of encoder and heads are found by module type; their parameters and statistics stay
    on the client. There is no global encoder: results are means over clients, each with the global weights
    and its own normalization layers. Clients that never took part have initial ones.
    """

    private_norm: Literal[True] = Field(True, description="always true; for false, use method.name=fedavg")
