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

RATE, PENALTY = 0.03, 1e-4  # of the classifiers of clients: Adam's first learning rate, which falls to 0


class Labelled(NamedTuple):
    """Training and test images, or features of them, with their labels."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    def seen(self, studio: Studio, client: int | None, kind: str) -> Labelled:
        """What a client's content or style encoder makes of the images; none: the untrained one."""
        x, x_test = (studio.features(client, images, kind) for images in (self.x, self.x_test))
        return self._replace(x=x, x_test=x_test)

    def accuracy(self, classes: int, l2: float, top: int = 1) -> float:
        """Of a linear probe on these features: how often a label is among the `top` most probable."""
        logits = linear.fit(self.x, self.y, classes, l2=l2).logits(self.x_test)
        best = logits.topk(min(top, classes), dim=1).indices
        return float((best == self.y_test[:, None]).any(1).float().mean())


class Probe(Use):
    """Linear probes for the label, on content features and on each client's style features.

    `content` and `style` are of the data set's images as they are (of style encoders the mean over clients,
    and of content encoders, too, where they are not shared), `content_untrained` and `style_untrained` of
    encoders of the same width before training. `content_own` and `style_own` are of each client's images
    with its look, with a probe for each client. One probe for the content features of all looks at once is
    `content_looks`.
    """

    count: int = Field(60_000, ge=2, description="training images in all")
    test: int = Field(10_000, ge=2, description="test images in all")
    l2: float = Field(1e-5, gt=0, description="penalty on the weights of standardised features")
    top: int = Field(1, ge=1, description="a label is found if it is among so many most probable ones")
    held_out: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="test on this share of the training images, where test images have other labels "
        "(people in celeba); 0: on test images",
    )

    def do(self, studio: Studio, folder: Path) -> dict[str, Any]:
        classes, clients = len(studio.run.federation.train.classes), range(studio.clients)
        count, test = -(-self.count // len(clients)), -(-self.test // len(clients))
        plain = self._split(studio, studio.plain_images("train", self.count), None, self.test)
        own = [self._split(studio, studio.train_images(client, count), client, test) for client in clients]
        looks = {
            kind: [images.seen(studio, client, kind) for client, images in enumerate(own)]
            for kind in ("content", "style")
        }
        everything = Labelled(*(torch.cat(each) for each in zip(*looks["content"], strict=True)))

        def accuracy(images: Labelled) -> float:
            return images.accuracy(classes, self.l2, self.top)

        shared = accuracy(plain.seen(studio, 0, "content")) if studio.shares_content else None
        rows = [
            {
                "content": accuracy(plain.seen(studio, client, "content")) if shared is None else shared,
                "style": accuracy(plain.seen(studio, client, "style")),
                "content_own": accuracy(looks["content"][client]),
                "style_own": accuracy(looks["style"][client]),
            }
            for client in clients
        ]
        return {
            **{name: sum(row[name] for row in rows) / len(rows) for name in rows[0]},
            "content_untrained": accuracy(plain.seen(studio, None, "content")),
            "style_untrained": accuracy(plain.seen(studio, None, "style")),
            "content_looks": accuracy(everything),
            "clients": rows,
            "widths": {kind: looks[kind][0].x.shape[1] for kind in looks},
            "images": f"{studio.run.federation.train.name}: {len(plain.x)} train, {len(plain.x_test)} test; "
            f"with the clients' looks: {len(everything.x)} train, {len(everything.x_test)} test",
        }

    def _split(
        self, studio: Studio, train: tuple[Tensor, Tensor | None], client: int | None, count: int
    ) -> Labelled:
        """Training images, with test images or a share of themselves to test on."""
        if self.held_out:
            x, y = train
            rest = len(x) - max(1, round(self.held_out * len(x)))
            pairs = (x[:rest], None if y is None else y[:rest]), (x[rest:], None if y is None else y[rest:])
            return _labelled(studio, *pairs)
        test = studio.plain_images("test", count) if client is None else studio.test_images(client, count)
        return _labelled(studio, train, test)


class PredictClient(Use):
    """Whose image is it: a linear classifier on content features, and one on all clients' style features.

    Of generated images (`content`, `style`), as in Figure 14, and of the clients' real test images
    (`content_real`, `style_real`). Each client's style features are mapped to one number, and these to the
    clients (appendix C.2.2). All classifiers have the same optimizer and penalty. A conditional model draws
    all labels equally often at every client, so that labels do not give the client away.
    """

    count: int = Field(500, ge=2, description="training images a client")
    test: int = Field(500, ge=1, description="test images a client")
    steps: int = Field(500, ge=1, description="of Adam on all training images at once")

    def do(self, studio: Studio, folder: Path) -> dict[str, Any]:
        clients = range(studio.clients)
        if len(clients) < 2:
            raise DataError("there is one client only: every image is its own")
        drawn = [
            studio.draw(client, studio.latents(self.count + self.test, "whose", client)) for client in clients
        ]
        generated = [images[: self.count] for images in drawn], [images[self.count :] for images in drawn]
        real = (
            [studio.train_images(client, self.count)[0] for client in clients],
            [studio.test_images(client, self.test)[0] for client in clients],
        )
        found: dict[str, Any] = {"chance": 1 / len(clients), "images": {}}
        for name, suffix, (train, test) in (("generated", "", generated), ("real", "_real", real)):
            found["images"][name] = f"{sum(map(len, train))} train, {sum(map(len, test))} test"
            for kind, accuracy in self._accuracies(studio, train, test).items():
                found[f"{kind}{suffix}"] = accuracy
        return found

    def _accuracies(self, studio: Studio, train: list[Tensor], test: list[Tensor]) -> dict[str, float]:
        """By content and by style features; images by client."""
        owners = [
            torch.cat([torch.full((len(x),), client) for client, x in enumerate(images)])
            for images in (train, test)
        ]
        everything = [torch.cat(images) for images in (train, test)]
        content = [studio.features(0, x, "content") for x in everything]
        style = [
            torch.stack([studio.features(client, x, "style") for client in range(studio.clients)], 1)
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
        """Of a linear network trained on standardised features, on test features."""
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
    """From features [N, M, D]: a linear map of each client's to a scalar, then one of the M scalars."""

    def __init__(self, clients: int, width: int) -> None:
        super().__init__()
        self.each = nn.Parameter(torch.randn(clients, width) / width**0.5)
        self.joint = nn.Linear(clients, clients)

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.joint((features * self.each).sum(2))
        return logits


def _labelled(
    studio: Studio, train: tuple[Tensor, Tensor | None], test: tuple[Tensor, Tensor | None]
) -> Labelled:
    (x, y), (x_test, y_test) = train, test
    if y is None or y_test is None:
        raise DataError(f"{studio.run.federation.train.name} has no labels to probe with")
    return Labelled(x, y, x_test, y_test)
