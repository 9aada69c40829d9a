"""A classifier that knows nothing of any generator: it says what digit a drawn image shows.

It is trained on the data set's own images with the clients' looks, has one head for each client (upside
down, a 6 looks like a mirrored 9: whose image it is says which), and its features serve for FID where
Inception's are not at hand. It depends on the data and the looks only, so that all runs on them have the
same judge; it is kept where decoded pixels are (see fedssl.data.cache).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.data.cache import folder
from fedssl.errors import DataError
from fedssl.generative.sampling import BATCH, Studio
from fedssl.methods.optimizers import Optimizer
from fedssl.methods.options import TrainConfig
from fedssl.models.encoders import build_encoder
from fedssl.models.options import ModelConfig
from fedssl.rng import derive, torch_rng
from fedssl.state import restore
from fedssl.storage import load_tensors, save_tensors

VERSION = 2
EPOCHS, MOST_STEPS, BATCH_SIZE, RATE = 6, 1500, 64, 3e-3
TESTED = 250  # images a client that its accuracy is measured on


class Classifier(nn.Module):
    """An encoder with a linear head for each client."""

    def __init__(self, size: tuple[int, int], channels: int, classes: int, clients: int) -> None:
        super().__init__()
        stride = 2 if min(size) >= 24 else 1
        made = build_encoder(ModelConfig(encoder="resnet8", width=16, stem_stride=stride), size, channels)
        self.encoder, self.features = made.module, made.features
        self.heads = nn.Linear(made.features, clients * classes)
        self.classes = classes

    def forward(self, images: Tensor, clients: Tensor) -> Tensor:
        """Logits of the labels [B, classes], of images [B, C, H, W] with the looks of these clients [B]."""
        logits = self.heads(self.encoder(images)).unflatten(1, (-1, self.classes))
        own: Tensor = logits[torch.arange(len(images)), clients]
        return own


@dataclass(frozen=True)
class Judge:
    """A trained classifier, and how often it is right on test images with the clients' looks."""

    network: Classifier
    studio: Studio
    accuracy: float

    @torch.no_grad()
    def labels(self, pixels: Tensor, client: int) -> Tensor:
        """What uint8 images with the look of a client show."""
        parts = [
            self.network(self.studio.normalised(part), torch.full((len(part),), client)).argmax(1)
            for part in torch.split(pixels, BATCH)
        ]
        return torch.cat(parts).cpu()

    @torch.no_grad()
    def features(self, pixels: Tensor) -> Tensor:
        found: Tensor = self.network.encoder(self.studio.normalised(pixels))
        return found


def find_judge(studio: Studio) -> Judge:
    """The judge of a run's data: from the cache, else trained now."""
    images, test = studio.run.federation.train, studio.run.federation.test
    if images.y is None or test is None or test.y is None:
        raise DataError(f"nothing can say what is drawn: {images.name} has no labels, or no test images")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(0, "judge"))
        network = Classifier(images.size, images.channels, len(images.classes), studio.clients)
    network = network.to(studio.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    file = folder() / f"judge-{_key(studio)}.safetensors"
    if file.exists():
        state, values = load_tensors(file)
        restore(network, state)
        return Judge(network.eval(), studio, values["accuracy"])
    _train(network, studio)
    judge = Judge(network.eval(), studio, 0.0)
    right = [judge.labels(x, client) == y for client, x, y in _tested(studio)]
    accuracy = float(torch.cat(right).float().mean())
    state = {name: value.detach().cpu() for name, value in network.state_dict().items()}
    save_tensors(file, state, {"accuracy": accuracy})
    return Judge(network, studio, accuracy)


def _train(network: Classifier, studio: Studio) -> None:
    """Every batch has the looks of all clients: batch normalisation shall know them together."""
    images = studio.run.federation.train
    assert images.y is not None
    size = min(BATCH_SIZE, len(images))
    steps = min(MOST_STEPS, max(30, EPOCHS * len(images) // size))
    config = TrainConfig(optimizer="adam", weight_decay=0.0)
    optimizer = Optimizer(list(network.parameters()), config, RATE)
    rng = torch_rng(0, "judge", "batches")
    network.train()
    for step in range(steps):
        optimizer.lr = RATE * (1 - step / steps)
        positions = torch.randint(len(images), (size,), generator=rng)
        clients = torch.randint(studio.clients, (size,), generator=rng).sort().values
        looks = [
            studio.look(images.x[positions[clients == client]], client)
            for client in sorted(set(clients.tolist()))
        ]
        logits = network(studio.normalised(torch.cat(looks)), clients)
        loss = F.cross_entropy(logits, images.y[positions].to(studio.device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _tested(studio: Studio) -> list[tuple[int, Tensor, Tensor]]:
    found = []
    for client in range(studio.clients):
        x, y = studio.test_images(client, TESTED)
        if y is not None and len(x):
            found.append((client, x, y))
    return found


def _key(studio: Studio) -> str:
    config, federation = studio.run.trained, studio.run.federation
    what: list[Any] = [VERSION, config.data.model_dump(), config.shift.model_dump(), federation.clients]
    what += [
        config.seed if config.data.limit else 0,
        [len(own) for own in federation.turns],
        torch.__version__,
    ]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
