"""FedAvg-SimCLR of Flower's simulation and Lightly's transforms and loss: a peer of `benchmarks/peers.py`.

Tuned by somebody who knows both: images, network and transform stay in Ray's processes from round to round,
both views take one pass through a channels-last network, nothing is evaluated, saved or printed. In the
variant of the two quickstarts, each view takes a separate pass in PyTorch's default layout.
"""

from __future__ import annotations

import logging
import os
import time
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from lightly.loss import NTXentLoss
from lightly.transforms import SimCLRTransform
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

app = ClientApp()


class Images(Dataset[list[Tensor]]):
    """Two views of each of a client's images."""

    def __init__(self, folder: str, client: int, clients: int, mean: float, std: float) -> None:
        images = np.array_split(np.load(f"{folder}/images.npz")["x"], clients)[client]
        self.images = [Image.fromarray(image) for image in images]
        self.transform = SimCLRTransform(
            input_size=images.shape[1],
            cj_strength=0.5,
            min_scale=0.08,
            random_gray_scale=0.2,
            gaussian_blur=0.0,
            hf_prob=0.5,
            normalize={"mean": [mean] * 3, "std": [std] * 3},
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> list[Tensor]:
        views: list[Tensor] = self.transform(self.images[index])
        return views


images_of = lru_cache(maxsize=None)(Images)


@lru_cache(maxsize=1)
def network(folder: str, layout: torch.memory_format) -> nn.Module:
    model: nn.Module = torch.load(f"{folder}/model.pt", weights_only=False)
    return model.to(memory_format=layout)  # type: ignore[call-overload]


@app.train()
def train(message: Message, context: Context) -> Message:
    """A client's part of a round."""
    work: dict[str, Any] = dict(message.content.config_records["config"])
    torch.set_num_threads(work["threads"])
    images = images_of(
        work["folder"], int(context.node_config["partition-id"]), work["clients"], work["mean"], work["std"]
    )
    batches = DataLoader(
        images,
        work["batch"],
        shuffle=True,
        drop_last=True,
        num_workers=work["loaders"],
        persistent_workers=work["loaders"] > 0,
    )
    quickstart = work["quickstart"]
    layout = torch.contiguous_format if quickstart else torch.channels_last
    model = network(work["folder"], layout)
    encoder, projector = model.get_submodule("encoder"), model.get_submodule("projector")
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    model.train()
    optimizer = torch.optim.SGD(
        model.parameters(), work["lr"], momentum=work["momentum"], weight_decay=work["weight_decay"]
    )
    criterion = NTXentLoss(temperature=work["temperature"])
    total, views = torch.zeros(()), 0
    for _ in range(work["epochs"]):
        for batch in batches:
            passes = batch if quickstart else [torch.cat(batch).contiguous(memory_format=layout)]
            z = torch.cat([projector(encoder(x)) for x in passes])
            loss = criterion(*z.chunk(2))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
            views += len(z)
    steps = views // (2 * work["batch"])
    metrics = MetricRecord({"loss": float(total) / steps, "views": views, "num-examples": len(images)})
    arrays = ArrayRecord(model.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def simulate(work: dict[str, Any]) -> list[tuple[float, int, float]]:
    """The end time, views and loss of each round."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    clients, at_once = work["clients"], work["at_once"]
    threads = max(1, (os.cpu_count() or 1) // at_once)
    server, ends, rounds = ServerApp(), list[float](), list[tuple[float, int, float]]()

    def ended(number: int, arrays: ArrayRecord) -> None:
        if number:  # 0 is before the first
            ends.append(time.time())

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        result = strategy.start(
            grid,
            ArrayRecord(network(work["folder"], torch.contiguous_format).state_dict()),
            work["rounds"],
            train_config=ConfigRecord({**work, "threads": threads}),
            evaluate_fn=ended,
        )
        for end, metrics in zip(ends, result.train_metrics_clientapp.values(), strict=True):
            mean: dict[str, Any] = dict(metrics)
            rounds.append((end, round(clients * mean["views"]), mean["loss"]))

    resources = {"num_cpus": threads, "num_gpus": 0.0}
    # Ray trains as many clients at once as it is given CPUs.
    ray: dict[str, Any] = {"num_cpus": at_once * threads, "include_dashboard": False, "log_to_driver": False}
    run_simulation(server, app, clients, backend_config={"init_args": ray, "client_resources": resources})
    return rounds
