"""Whether anonymized images still reveal their client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedssl.errors import DataError
from fedssl.generative.reference_classifier import BATCH_SIZE, RATE, Classifier, load_reference_classifier
from fedssl.generative.restyle import ContentTransfer, LatentMaps, predict_labels, transfer
from fedssl.generative.sampling import BATCH, ClientGenerators
from fedssl.methods.optimizers import Optimizer
from fedssl.methods.options import TrainConfig
from fedssl.rng import derive


class Reidentify(ContentTransfer):
    """Accuracy of a classifier of clients, before and after images are re-styled to a reference client.

    `before`: trained and tested on real images. `after`: the same classifier on re-styled test images.
    `after_adapted`: trained and tested on re-styled images. `kept`: re-styled images that keep their label.
    """

    reference: int = Field(0, ge=0, description="the client whose style the images get")
    count: int = Field(500, ge=2, description="training images per client")
    test: int = Field(250, ge=1, description="test images per client")
    fit: int = Field(400, ge=1, description="training steps of each classifier of clients")

    def apply(self, generators: ClientGenerators, folder: Path) -> dict[str, Any]:
        clients = range(generators.clients)
        if len(clients) < 2:
            raise DataError("re-identification needs at least 2 clients")
        generators.model(self.reference)  # raises if there is no such client
        maps = self.load_maps(generators, folder)
        train = [generators.train_images(client, self.count)[0] for client in clients]
        test = [generators.test_images(client, self.test) for client in clients]
        shown = [images for images, _ in test]
        drawn_train, drawn_test = (
            [self._redrawn(generators, maps, x) for x in part] for part in (train, shown)
        )
        first = self._classifier(generators, train)
        adapted = self._classifier(generators, drawn_train)
        found = {
            "before": _accuracy(generators, first, shown),
            "after": _accuracy(generators, first, drawn_test),
            "after_adapted": _accuracy(generators, adapted, drawn_test),
            "chance": 1 / len(clients),
            "reference": self.reference,
        }
        labels = [y for _, y in test if y is not None]
        if labels:
            seen = load_reference_classifier(generators).labels(torch.cat(drawn_test), self.reference)
            found["kept"] = float((seen == torch.cat(labels)).float().mean())
        return found

    def _redrawn(self, generators: ClientGenerators, maps: LatentMaps, x: Tensor) -> Tensor:
        labels = predict_labels(generators, x) if generators.classes else None
        return transfer(generators, maps, self.reference, x, labels)

    def _classifier(self, generators: ClientGenerators, images: list[Tensor]) -> Classifier:
        """Train a classifier of clients; `images` are by client."""
        x = torch.cat(images)
        owner = torch.cat([torch.full((len(own),), client) for client, own in enumerate(images)])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(0, "reidentify"))
            network = Classifier((x.shape[1], x.shape[2]), x.shape[3], generators.clients, 1)
        network = network.to(generators.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = Optimizer(
            list(network.parameters()), TrainConfig(optimizer="adam", weight_decay=0.0), RATE
        )
        rng = generators.rng("reidentify")
        network.train()
        for step in range(self.fit):
            optimizer.lr = RATE * (1 - step / self.fit)
            chosen = torch.randint(len(x), (min(BATCH_SIZE, len(x)),), generator=rng)
            heads = torch.zeros(len(chosen), dtype=torch.int64)
            logits = network(generators.normalize(x[chosen]), heads)
            loss = F.cross_entropy(logits, owner[chosen].to(generators.device))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        trained: Classifier = network.eval()
        return trained


@torch.no_grad()
def _accuracy(generators: ClientGenerators, network: Classifier, images: list[Tensor]) -> float:
    """Accuracy of a classifier of clients; `images` are by client."""
    right = []
    for client, own in enumerate(images):
        for part in torch.split(own, BATCH):
            logits = network(generators.normalize(part), torch.zeros(len(part), dtype=torch.int64))
            right.append(logits.argmax(1).cpu() == client)
    return float(torch.cat(right).float().mean())
