"""Linear probes on content and style features, for the label and for the client (Figs. 4, 5, 14)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.errors import DataError
from fedssl.evaluation import linear
from fedssl.generative.sampling import ClientGenerators
from fedssl.generative.use import Use
from fedssl.methods.optimizers import Optimizer
from fedssl.methods.options import TrainConfig

RATE, PENALTY = 0.03, 1e-4  # classifiers of clients: Adam's initial learning rate, and weight decay


class Labeled(NamedTuple):
    """Training and test images (or their features) with labels."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    def encode(self, generators: ClientGenerators, client: int | None, kind: str) -> Labeled:
        """Encode the images by a client's content or style encoder; None: by the untrained one."""
        x, x_test = (generators.features(client, images, kind) for images in (self.x, self.x_test))
        return self._replace(x=x, x_test=x_test)

    def accuracy(self, classes: int, l2: float, top: int = 1) -> float:
        """Top-k accuracy of a linear probe on these features."""
        logits = linear.fit(self.x, self.y, classes, l2=l2).logits(self.x_test)
        best = logits.topk(min(top, classes), dim=1).indices
        return float((best == self.y_test[:, None]).any(1).float().mean())


class Probe(Use):
    """Linear probes for the label, on content features and on each client's style features.

    `content` and `style` use the data set's images without shift; they are means over clients for encoders
    that are not shared. `content_untrained` and `style_untrained` use untrained encoders of the same
    architecture. `content_own` and `style_own` use each client's shifted images, with one probe per client.
    `content_looks` uses one probe for the content features of all clients' images.
    """

    count: int = Field(60_000, ge=2, description="total number of training images")
    test: int = Field(10_000, ge=2, description="total number of test images")
    l2: float = Field(1e-5, gt=0, description="penalty on the weights of standardized features")
    top: int = Field(1, ge=1, description="k of the top-k accuracy")
    held_out: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the training images to test on, if test images have other labels "
        "(people in celeba); 0: use the test images",
    )

    def apply(self, generators: ClientGenerators, folder: Path) -> dict[str, Any]:
        classes, clients = len(generators.run.federation.train.classes), range(generators.clients)
        count, test = -(-self.count // len(clients)), -(-self.test // len(clients))
        plain = self._split(generators, generators.plain_images("train", self.count), None, self.test)
        own = [
            self._split(generators, generators.train_images(client, count), client, test)
            for client in clients
        ]
        shifted = {
            kind: [images.encode(generators, client, kind) for client, images in enumerate(own)]
            for kind in ("content", "style")
        }
        everything = Labeled(*(torch.cat(each) for each in zip(*shifted["content"], strict=True)))

        def accuracy(images: Labeled) -> float:
            return images.accuracy(classes, self.l2, self.top)

        shared = accuracy(plain.encode(generators, 0, "content")) if generators.shares_content else None
        rows = [
            {
                "content": accuracy(plain.encode(generators, client, "content"))
                if shared is None
                else shared,
                "style": accuracy(plain.encode(generators, client, "style")),
                "content_own": accuracy(shifted["content"][client]),
                "style_own": accuracy(shifted["style"][client]),
            }
            for client in clients
        ]
        return {
            **{name: sum(row[name] for row in rows) / len(rows) for name in rows[0]},
            "content_untrained": accuracy(plain.encode(generators, None, "content")),
            "style_untrained": accuracy(plain.encode(generators, None, "style")),
            "content_looks": accuracy(everything),
            "clients": rows,
            "widths": {kind: shifted[kind][0].x.shape[1] for kind in shifted},
            "images": f"{generators.run.federation.train.name}: {len(plain.x)} train, "
            f"{len(plain.x_test)} test; of the clients' domains: {len(everything.x)} train, "
            f"{len(everything.x_test)} test",
        }

    def _split(
        self,
        generators: ClientGenerators,
        train: tuple[Tensor, Tensor | None],
        client: int | None,
        count: int,
    ) -> Labeled:
        """Combine training images with test images, or split off a share of them to test on."""
        if self.held_out:
            x, y = train
            rest = len(x) - max(1, round(self.held_out * len(x)))
            pairs = (x[:rest], None if y is None else y[:rest]), (x[rest:], None if y is None else y[rest:])
            return _labeled(generators, *pairs)
        test = (
            generators.plain_images("test", count)
            if client is None
            else generators.test_images(client, count)
        )
        return _labeled(generators, train, test)


class PredictClient(Use):
    """Predict the client of an image from content features, and from all clients' style features.

    `content` and `style` use generated images, as in Figure 14, `content_real` and `style_real` the clients'
    real test images. Each client's style features are mapped to one number, and these to the clients
    (appendix C.2.2). All classifiers have the same optimizer and penalty. A conditional model generates
    all labels equally often at every client, so that the label does not reveal the client.
    """

    count: int = Field(500, ge=2, description="training images per client")
    test: int = Field(500, ge=1, description="test images per client")
    steps: int = Field(500, ge=1, description="full-batch steps of Adam")

    def apply(self, generators: ClientGenerators, folder: Path) -> dict[str, Any]:
        clients = range(generators.clients)
        if len(clients) < 2:
            raise DataError("predict-client needs at least 2 clients")
        drawn = [
            generators.draw(client, generators.latents(self.count + self.test, "whose", client))
            for client in clients
        ]
        generated = [images[: self.count] for images in drawn], [images[self.count :] for images in drawn]
        real = (
            [generators.train_images(client, self.count)[0] for client in clients],
            [generators.test_images(client, self.test)[0] for client in clients],
        )
        found: dict[str, Any] = {"chance": 1 / len(clients), "images": {}}
        for name, suffix, (train, test) in (("generated", "", generated), ("real", "_real", real)):
            found["images"][name] = f"{sum(map(len, train))} train, {sum(map(len, test))} test"
            for kind, accuracy in self._accuracies(generators, train, test).items():
                found[f"{kind}{suffix}"] = accuracy
        return found

    def _accuracies(
        self, generators: ClientGenerators, train: list[Tensor], test: list[Tensor]
    ) -> dict[str, float]:
        """Accuracy by kind of feature; `train` and `test` are by client."""
        owners = [
            torch.cat([torch.full((len(x),), client) for client, x in enumerate(images)])
            for images in (train, test)
        ]
        everything = [torch.cat(images) for images in (train, test)]
        content = [generators.features(0, x, "content") for x in everything]
        style = [
            torch.stack([generators.features(client, x, "style") for client in range(generators.clients)], 1)
            for x in everything
        ]
        clients, width = style[0].shape[1:]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            linear_map = nn.Linear(content[0].shape[1], clients)
            scalars = Scalars(clients, width)
        return {
            kind: self._accuracy(network, features, owners)
            for kind, network, features in (("content", linear_map, content), ("style", scalars, style))
        }

    def _accuracy(self, network: nn.Module, features: list[Tensor], owners: list[Tensor]) -> float:
        """Train a linear network on standardized features; returns its test accuracy."""
        mean, std = features[0].mean(0), features[0].std(0).clamp_min(1e-6)
        train, test = ((each - mean) / std for each in features)
        parameters = list(network.parameters())
        optimizer = Optimizer(parameters, TrainConfig(optimizer="adam", weight_decay=PENALTY), RATE)
        for step in range(self.steps):
            optimizer.lr = RATE * (1 - step / self.steps)
            loss = F.cross_entropy(network(train), owners[0])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        with torch.no_grad():
            return float((network(test).argmax(1) == owners[1]).float().mean())


class Scalars(nn.Module):
    """Logits from features [N, M, D]: a scalar for each of the M clients, then a linear layer on these."""

    def __init__(self, clients: int, width: int) -> None:
        super().__init__()
        self.each = nn.Parameter(torch.randn(clients, width) / width**0.5)
        self.joint = nn.Linear(clients, clients)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.joint((features * self.each).sum(2))
        return logits


def _labeled(
    generators: ClientGenerators, train: tuple[Tensor, Tensor | None], test: tuple[Tensor, Tensor | None]
) -> Labeled:
    (x, y), (x_test, y_test) = train, test
    if y is None or y_test is None:
        raise DataError(f"{generators.run.federation.train.name} has no labels to probe with")
    return Labeled(x, y, x_test, y_test)
