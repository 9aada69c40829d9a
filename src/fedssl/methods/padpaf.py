"""PaDPaF (Almansoori, Horváth, Takáč): content modules are federated, style modules stay private."""

from __future__ import annotations

from dataclasses import replace

from fedssl.methods.alternating import AlternatingTraining
from fedssl.methods.client import Client
from fedssl.methods.method import Aggregate, ServerTools
from fedssl.methods.training import Training
from fedssl.models.model import Model, Role
from fedssl.state import ServerState, Upload


class PaDPaF(AlternatingTraining):
    """Only shared parts are uploaded; the server steps along the mean update (Algorithm 1).

    For the paper's server set server.optimizer=adam.
    """

    def shares(self, model: Model) -> list[str]:
        """Parameters of shared parts, by module path; buffers (statistics, power iteration) stay local."""
        buffers = {name for name, _ in model.named_buffers()}
        return [name for name in model.names(Role.SHARED) if name not in buffers]

    def train(self, client: Client) -> Training:
        return self.train_model(client, client.model)

    def aggregate(self, server: ServerState, round: int, tools: ServerTools) -> Aggregate:
        return Mean(server, round, tools)


class Mean(Aggregate):
    """All clients have equal weight, whatever their number of images (line 17)."""

    def __init__(self, server: ServerState, round: int, tools: ServerTools) -> None:
        tools.check_server_sees_uploads(
            "PaDPaF's server takes the unweighted mean, but clients weight their models by their number of "
            "images; set aggregation.client_side=false"
        )
        super().__init__(server, round, tools)

    def add(self, upload: Upload) -> dict[str, object]:
        return super().add(replace(upload, num_samples=1))
