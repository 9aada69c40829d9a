"""What content and style features know: the label, and whose image it is (Figs. 4, 5, 14)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.errors import DataError
from fedssl.evaluation import linear
from fedssl.generative.sampling import Studio
from fedssl.generative.use import Use
from fedssl.methods.optimizers import Optimizer
from fedssl.methods.options import TrainConfig


class Labelled(NamedTuple):
    """Training and test images, or features of them, with their labels."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    def seen(self, studio: Studio, client: int, kind: str) -> Labelled:
        """What a client's content or style encoder makes of the images."""
        x, x_test = (studio.features(client, images, kind) for images in (self.x, self.x_test))
        return self._replace(x=x, x_test=x_test)

    def accuracy(self, classes: int, l2: float) -> float:
        """Of a linear probe on these features."""
        return _accuracy(self.x, self.y, self.x_test, self.y_test, classes, l2)


class Probe(Use):
    """Linear probes for the label, on content features and on each client's style features.

    `content` and `style` are of the data set's images as they are (of style encoders the mean over clients),
    `content_own` and `style_own` of each client's images with its look, with a probe for each client. One
    probe for the content features of all looks at once is `content_looks`.
    """

    count: int = Field(60_000, ge=2, description="training images in all")
    test: int = Field(10_000, ge=2, description="test images in all")
    l2: float = Field(1e-5, gt=0, description="penalty on the weights of standardised features")

    def do(self, studio: Studio, folder: Path) -> dict[str, Any]:
        classes, clients = len(studio.run.federation.train.classes), range(studio.clients)
        count, test = -(-self.count // len(clients)), -(-self.test // len(clients))
        plain = _labelled(
            studio, studio.plain_images("train", self.count), studio.plain_images("test", self.test)
        )
        own = [
            _labelled(studio, studio.train_images(client, count), studio.test_images(client, test))
            for client in clients
        ]
        looks = {
            kind: [images.seen(studio, client, kind) for client, images in enumerate(own)]
            for kind in ("content", "style")
        }
        everything = Labelled(*(torch.cat(each) for each in zip(*looks["content"], strict=True)))
        rows = [
            {
                "style": plain.seen(studio, client, "style").accuracy(classes, self.l2),
                "content_own": looks["content"][client].accuracy(classes, self.l2),
                "style_own": looks["style"][client].accuracy(classes, self.l2),
            }
            for client in clients
        ]
        return {
            "content": plain.seen(studio, 0, "content").accuracy(classes, self.l2),
            **{name: sum(row[name] for row in rows) / len(rows) for name in rows[0]},
            "content_looks": everything.accuracy(classes, self.l2),
            "clients": rows,
            "images": f"{studio.run.federation.train.name}: {len(plain.x)} train, {len(plain.x_test)} test; "
            f"with the clients' looks: {len(everything.x)} train, {len(everything.x_test)} test",
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


def _labelled(
    studio: Studio, train: tuple[Tensor, Tensor | None], test: tuple[Tensor, Tensor | None]
) -> Labelled:
    (x, y), (x_test, y_test) = train, test
    if y is None or y_test is None:
        raise DataError(f"{studio.run.federation.train.name} has no labels to probe with")
    return Labelled(x, y, x_test, y_test)
