"""What content and style features know: the label, and whose image it is (Figs. 4, 5, 14)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.config import TrainConfig
from fedssl.errors import DataError
from fedssl.evaluation import linear
from fedssl.generative.sampling import Studio
from fedssl.generative.use import Use
from fedssl.methods.optimizers import Optimizer


class Probe(Use):
    """Linear probes for the label, on content features and on each client's style features.

    All images have the looks of the clients. One probe learns from the content features of all. Style
    features are each client's own: they are probed on its own images, and the mean is taken; `content_own`
    is the same with content features.
    """

    count: int = Field(1000, ge=2, description="training images a client")
    test: int = Field(1000, ge=1, description="test images a client")
    l2: float = Field(1e-3, gt=0, description="penalty on the weights of standardised features")

    def do(self, studio: Studio, folder: Path) -> dict[str, Any]:
        classes = len(studio.run.federation.train.classes)
        features: dict[str, list[tuple[Tensor, Tensor, Tensor, Tensor]]] = {"content": [], "style": []}
        for client in range(studio.clients):
            x, y = _labelled(studio.train_images(client, self.count), studio)
            x_test, y_test = _labelled(studio.test_images(client, self.test), studio)
            for kind, found in features.items():
                own = studio.features(client, x, kind), studio.features(client, x_test, kind)
                found.append((own[0], y, own[1], y_test))
        train, labels, test, truth = (torch.cat(each) for each in zip(*features["content"], strict=True))
        content = _accuracy(train, labels, test, truth, classes, self.l2)
        own_content, style = (
            [_accuracy(*own, classes, self.l2) for own in features[kind]] for kind in ("content", "style")
        )
        return {
            "content": content,
            "content_own": sum(own_content) / len(own_content),
            "style": sum(style) / len(style),
            "clients": [
                {"content": each, "style": other} for each, other in zip(own_content, style, strict=True)
            ],
            "images": f"{studio.run.federation.train.name} with the clients' looks: {len(train)} train, "
            f"{len(test)} test",
        }


class PredictClient(Use):
    """Whose image is it: a linear classifier on content features, and one on all clients' style features.

    Each client's style features are mapped to one number, and these to the clients (appendix C.2.2).
    """

    count: int = Field(500, ge=2, description="training images a client")
    test: int = Field(500, ge=1, description="test images a client")
    steps: int = Field(500, ge=1, description="of Adam on all training images at once")

    def do(self, studio: Studio, folder: Path) -> dict[str, Any]:
        clients = studio.clients
        if clients < 2:
            raise DataError("there is one client only: every image is its own")
        sets = {
            "train": [studio.train_images(client, self.count)[0] for client in range(clients)],
            "test": [studio.test_images(client, self.test)[0] for client in range(clients)],
        }
        owner = {
            split: torch.cat([torch.full((len(x),), client) for client, x in enumerate(images)])
            for split, images in sets.items()
        }
        everything = {split: torch.cat(images) for split, images in sets.items()}
        content = {split: studio.features(0, x, "content") for split, x in everything.items()}
        style = {
            split: torch.stack([studio.features(client, x, "style") for client in range(clients)], 1)
            for split, x in everything.items()
        }
        accuracy = _accuracy(content["train"], owner["train"], content["test"], owner["test"], clients, 1e-3)
        predicted = self._from_style(style["train"], owner["train"], style["test"])
        return {
            "content": accuracy,
            "style": float((predicted == owner["test"]).float().mean()),
            "chance": float(owner["test"].bincount().max()) / len(owner["test"]),
            "images": f"{len(everything['train'])} train, {len(everything['test'])} test",
        }

    def _from_style(self, train: Tensor, owner: Tensor, test: Tensor) -> Tensor:
        """From features [N, M, D]: a linear map of each client's to a scalar, then one of the M scalars."""
        mean, std = train.mean(0), train.std(0).clamp_min(1e-6)
        train, test = (train - mean) / std, (test - mean) / std
        clients, width = mean.shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            each = nn.Parameter(torch.randn(clients, width) / width**0.5)
            joint = nn.Linear(clients, clients)
        parameters = [each, *joint.parameters()]
        optimizer = Optimizer(parameters, TrainConfig(optimizer="adam", weight_decay=1e-4), 0.03)

        def logits(features: Tensor) -> Tensor:
            out: Tensor = joint((features * each).sum(2))
            return out

        for step in range(self.steps):
            optimizer.lr = 0.03 * (1 - step / self.steps)
            loss = F.cross_entropy(logits(train), owner)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            return logits(test).argmax(1)


def _accuracy(train: Tensor, labels: Tensor, test: Tensor, truth: Tensor, classes: int, l2: float) -> float:
    predicted = linear.fit(train, labels, classes, l2=l2).predict(test)
    return float((predicted == truth).float().mean())


def _labelled(images: tuple[Tensor, Tensor | None], studio: Studio) -> tuple[Tensor, Tensor]:
    x, y = images
    if y is None:
        raise DataError(f"{studio.run.federation.train.name} has no labels to probe with")
    return x, y
