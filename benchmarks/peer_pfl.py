"""FedAvg-SimCLR of pfl-research's simulation in one process, on ready-made views: a peer of `peers.py`.

Network, loss and step are those of fedssl, so the comparison is about everything around them. It evaluates
nothing and averages parameters only: BatchNorm statistics are passed from client to client.
"""

# mypy: disable-error-code="import-not-found", allow-subclassing-any

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from fedssl.data.view_recipes import build_recipe
from fedssl.data.views import Views
from fedssl.models.heads import project
from fedssl.models.model import Model
from fedssl.objectives.simclr import nt_xent

MANY = 1000  # rounds: the receiver ends the process


class SimCLR(nn.Module):
    """A network with its loss, which counts the views that it saw."""

    def __init__(self, network: Model, temperature: float) -> None:
        super().__init__()
        self.network, self.temperature, self.views = network, temperature, 0

    def loss(self, one: Tensor, other: Tensor) -> Tensor:
        self.views += len(one) + len(other)
        return nt_xent(project(self.network, torch.cat((one, other))), self.temperature)

    def metrics(self, one: Tensor, other: Tensor) -> Mapping[str, Any]:
        """An empty evaluation, because pfl requires one in the first round."""
        return {"images": Weighted(len(one), len(one))}


class Watch(TrainingProcessCallback):
    """Ticks after each round, and counts its views."""

    def __init__(self, model: SimCLR, views: int, tick: Callable[[], None]) -> None:
        self.model, self.views, self.tick = model, views, tick

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        self.tick()
        if self.model.views != self.views:
            raise SystemExit(f"pfl saw {self.model.views} views, not {self.views}: not the same work")
        self.model.views = 0
        return False, Metrics()


def simulate(work: dict[str, Any], tick: Callable[[], None]) -> None:
    """Tick when everything is ready, and after each of many rounds."""
    torch.set_num_threads(os.cpu_count() or 1)
    network: Model = torch.load(f"{work['folder']}/model.pt", weights_only=False)
    model = SimCLR(network.to(memory_format=torch.channels_last), work["temperature"]).train()
    make = Views(build_recipe("simclr"), (32, 32), 3, work["mean"], work["std"])
    rng, owned = torch.Generator().manual_seed(0), {}
    parts = np.array_split(np.load(f"{work['folder']}/images.npz")["x"], work["clients"])
    for client, images in enumerate(parts):
        full = len(images) // work["batch"] * work["batch"]
        pair = tuple(make(torch.from_numpy(images[:full]), rng))
        owned[client] = PyTorchTensorDataset(pair, user_id=str(client))
    data = FederatedDataset(owned.__getitem__, get_user_sampler("minimize_reuse", list(owned)))
    sgd = partial(torch.optim.SGD, momentum=work["momentum"], weight_decay=work["weight_decay"])
    tick()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=MANY,
            evaluation_frequency=MANY + 1,
            train_cohort_size=work["clients"],
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        PyTorchModel(model, sgd, torch.optim.SGD(model.parameters(), lr=1.0)),
        NNTrainHyperParams(
            local_batch_size=work["batch"], local_num_epochs=work["epochs"], local_learning_rate=work["lr"]
        ),
        NNEvalHyperParams(local_batch_size=work["batch"]),
        [Watch(model, 2 * work["images"] * work["epochs"], tick)],
        send_metrics_to_platform=False,
    )
