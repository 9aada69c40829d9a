"""FedDecorr (Shi et al., ICLR 2023): against the collapse of dimensions that heterogeneous clients cause."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from fedssl.methods.client import Client
from fedssl.methods.fedavg import FedAvg
from fedssl.methods.latent import record_outputs
from fedssl.methods.training import Batch, Training, objective_loss, train_locally
from fedssl.objectives.losses import full_precision


class FedDecorr(FedAvg):
    """FedAvg whose clients decorrelate the features of the encoder, with any objective."""

    weight: float = Field(0.1, ge=0, description="weight of the decorrelation (β)")

    def train(self, client: Client) -> Training:
        if not self.weight:
            return super().train(client)
        encoder, objective = client.model.part("encoder"), objective_loss(client)

        def loss(batch: Batch) -> Tensor:
            with record_outputs(encoder) as seen:
                value = objective(batch)
            return value + self.weight * correlation(torch.cat(seen))

        return train_locally(client, loss=loss)


@full_precision
def correlation(features: Tensor) -> Tensor:
    """‖K‖²_F/d² without the diagonal, which is constant, of the correlation matrix K of features (Eq. 6)."""
    count, width = features.shape
    centered = features - features.mean(dim=0)
    scaled = centered / (centered.square().mean(dim=0) + 1e-8).sqrt()
    matrix = scaled.T @ scaled / count
    return (matrix.square().sum() - matrix.diagonal().square().sum()) / width**2
