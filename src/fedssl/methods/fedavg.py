"""FedAvg (McMahan et al. 2017); with an objective it is Fed{SimCLR, MoCo, SimSiam, BYOL} of FedSSL."""

from __future__ import annotations

from pydantic import Field

from fedssl.methods.method import Method
from fedssl.models.model import Model


class FedAvg(Method):
    """Clients replace their online network by the global one; target networks stay with them."""

    update_both: bool = Field(
        False, description="also replace the target network by the global encoder in every round"
    )

    def keeps(self, model: Model) -> list[str]:
        # A target that is not in memory starts as a copy of the online network.
        replaced = set(model.sources()) if self.update_both else set()
        return [name for name in super().keeps(model) if name not in replaced]
