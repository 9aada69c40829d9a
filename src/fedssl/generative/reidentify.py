"""Whether anonymised images still give their client away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedssl.errors import DataError
from fedssl.generative.judge import BATCH_SIZE, RATE, Classifier, find_judge
from fedssl.generative.restyle import Mapped, Maps, content_labels, transfer
from fedssl.generative.sampling import BATCH, Studio
from fedssl.methods.optimizers import Optimizer
from fedssl.methods.options import TrainConfig
from fedssl.rng import derive


class Reidentify(Mapped):
    """How often a classifier names the client of an image, before and after it is redrawn for a reference.

    `before`: trained and tested on real images. `after`: the same classifier on redrawn test images.
    `after_adapted`: one that was trained on redrawn images. `kept`: redrawn images that keep their label.
    """

    reference: int = Field(0, ge=0, description="the client in whose style images are redrawn")
    count: int = Field(500, ge=2, description="images a client to train the classifiers on")
    test: int = Field(250, ge=1, description="test images a client")
    fit: int = Field(400, ge=1, description="steps of each classifier of clients")

    def do(self, studio: Studio, folder: Path) -> dict[str, Any]:
        clients = range(studio.clients)
        if len(clients) < 2:
            raise DataError("there is one client only: every image is its own")
        studio.model(self.reference)  # says so if there is no such client
        maps = self.maps(studio, folder)
        train = [studio.train_images(client, self.count)[0] for client in clients]
        test = [studio.test_images(client, self.test) for client in clients]
        shown = [images for images, _ in test]
        drawn_train, drawn_test = ([self._redrawn(studio, maps, x) for x in part] for part in (train, shown))
        first = self._classifier(studio, train)
        adapted = self._classifier(studio, drawn_train)
        found = {
            "before": _accuracy(studio, first, shown),
            "after": _accuracy(studio, first, drawn_test),
            "after_adapted": _accuracy(studio, adapted, drawn_test),
            "chance": 1 / len(clients),
            "reference": self.reference,
        }
        labels = [y for _, y in test if y is not None]
        if labels:
            seen = find_judge(studio).labels(torch.cat(drawn_test), self.reference)
            found["kept"] = float((seen == torch.cat(labels)).float().mean())
        return found

    def _redrawn(self, studio: Studio, maps: Maps, x: Tensor) -> Tensor:
        labels = content_labels(studio, x) if studio.classes else None
        return transfer(studio, maps, self.reference, x, labels)

    def _classifier(self, studio: Studio, images: list[Tensor]) -> Classifier:
        """Trained to name the client of an image; images by client."""
        x = torch.cat(images)
        owner = torch.cat([torch.full((len(own),), client) for client, own in enumerate(images)])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(0, "reidentify"))
            network = Classifier((x.shape[1], x.shape[2]), x.shape[3], studio.clients, 1)
        network = network.to(studio.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = Optimizer(
            list(network.parameters()), TrainConfig(optimizer="adam", weight_decay=0.0), RATE
        )
        rng = studio.rng("reidentify")
        network.train()
        for step in range(self.fit):
            optimizer.lr = RATE * (1 - step / self.fit)
            chosen = torch.randint(len(x), (min(BATCH_SIZE, len(x)),), generator=rng)
            heads = torch.zeros(len(chosen), dtype=torch.int64)
            logits = network(studio.normalised(x[chosen]), heads)
            loss = F.cross_entropy(logits, owner[chosen].to(studio.device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        trained: Classifier = network.eval()
        return trained


@torch.no_grad()
def _accuracy(studio: Studio, network: Classifier, images: list[Tensor]) -> float:
    """How often the client of an image is named; images by client."""
    right = []
    for client, own in enumerate(images):
        for part in torch.split(own, BATCH):
            logits = network(studio.normalised(part), torch.zeros(len(part), dtype=torch.int64))
            right.append(logits.argmax(1).cpu() == client)
    return float(torch.cat(right).float().mean())
