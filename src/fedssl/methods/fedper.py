"""FedPer (Arivazhagan et al. 2019) without labels (FedStyle's appendix)."""

from __future__ import annotations

from fedssl.methods.method import Method
from fedssl.models.model import Model


class FedPer(Method):
    """The encoder is shared; the heads (projector, predictor) stay on the client."""

    def shares(self, model: Model) -> list[str]:
        return model.names_under(["encoder"])
