"""A classifier of real images that is used to evaluate generated ones.

It is trained on the data set's images with every client's shift, with one head per client (upside down, a 6
looks like a mirrored 9, so the right class depends on the client). Its features replace Inception's for FID
where these are not installed. It depends on the data and the shift only, so all runs on them share it. The
weights are cached with the decoded pixels (see fedssl.data.cache).
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
from fedssl.generative.sampling import BATCH, ClientGenerators
from fedssl.methods.optimizers import Optimizer
from fedssl.methods.options import TrainConfig
from fedssl.models.encoders import build_encoder
from fedssl.models.options import ModelConfig
from fedssl.rng import derive, torch_rng
from fedssl.state import restore
from fedssl.tensorfile import load_tensors, save_tensors

VERSION = 2
EPOCHS, MAX_STEPS, BATCH_SIZE, RATE = 6, 1500, 64, 3e-3
TEST_IMAGES = 250  # per client


class Classifier(nn.Module):
    """An encoder with one linear head per client."""

    def __init__(self, size: tuple[int, int], channels: int, classes: int, clients: int) -> None:
        super().__init__()
        stride = 2 if min(size) >= 24 else 1
        made = build_encoder(ModelConfig(encoder="resnet8", width=16, stem_stride=stride), size, channels)
        self.encoder, self.features = made.module, made.features
        self.heads = nn.Linear(made.features, clients * classes)
        self.classes = classes

    def forward(self, images: Tensor, clients: Tensor) -> Tensor:
        """Logits [B, classes] for images [B, C, H, W] of these clients [B]."""
        logits = self.heads(self.encoder(images)).unflatten(1, (-1, self.classes))
        selected: Tensor = logits[torch.arange(len(images)), clients]
        return selected


@dataclass(frozen=True)
class ReferenceClassifier:
    """A trained classifier, and its accuracy on test images of the clients' domains."""

    network: Classifier
    generators: ClientGenerators
    accuracy: float

    @torch.no_grad()
    def labels(self, pixels: Tensor, client: int) -> Tensor:
        """Predict the labels of uint8 images [N, H, W, C] of a client's domain."""
        parts = [
            self.network(self.generators.normalize(part), torch.full((len(part),), client)).argmax(1)
            for part in torch.split(pixels, BATCH)
        ]
        return torch.cat(parts).cpu()

    @torch.no_grad()
    def features(self, pixels: Tensor) -> Tensor:
        """Encode uint8 images [N, H, W, C]."""
        encoded: Tensor = self.network.encoder(self.generators.normalize(pixels))
        return encoded


def load_reference_classifier(generators: ClientGenerators) -> ReferenceClassifier:
    """Load the classifier for a run's data from the cache, or train it."""
    images, test = generators.run.federation.train, generators.run.federation.test
    if images.y is None or test is None or test.y is None:
        raise DataError(f"cannot classify generated images: {images.name} has no labels, or no test images")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(
            derive(0, "judge")
        )  # the name of a stream of random numbers: changing it changes bits
        network = Classifier(images.size, images.channels, len(images.classes), generators.clients)
    network = network.to(generators.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    file = folder() / f"reference-classifier-{_key(generators)}.safetensors"
    if file.exists():
        state, values = load_tensors(file)
        restore(network, state)
        return ReferenceClassifier(network.eval(), generators, values["accuracy"])
    _train(network, generators)
    classifier = ReferenceClassifier(network.eval(), generators, 0.0)
    right = [classifier.labels(x, client) == y for client, x, y in _test_sets(generators)]
    accuracy = float(torch.cat(right).float().mean())
    state = {name: value.detach().cpu() for name, value in network.state_dict().items()}
    save_tensors(file, state, {"accuracy": accuracy})
    return ReferenceClassifier(network, generators, accuracy)


def _train(network: Classifier, generators: ClientGenerators) -> None:
    """Train on batches that mix all domains, so that batch statistics fit all of them."""
    images = generators.run.federation.train
    assert images.y is not None
    size = min(BATCH_SIZE, len(images))
    steps = min(MAX_STEPS, max(30, EPOCHS * len(images) // size))
    config = TrainConfig(optimizer="adam", weight_decay=0.0)
    optimizer = Optimizer(list(network.parameters()), config, RATE)
    rng = torch_rng(0, "judge", "batches")
    network.train()
    for step in range(steps):
        optimizer.lr = RATE * (1 - step / steps)
        positions = torch.randint(len(images), (size,), generator=rng)
        clients = torch.randint(generators.clients, (size,), generator=rng).sort().values
        shifted = [
            generators.apply_shift(images.x[positions[clients == client]], client)
            for client in sorted(set(clients.tolist()))
        ]
        logits = network(generators.normalize(torch.cat(shifted)), clients)
        loss = F.cross_entropy(logits, images.y[positions].to(generators.device))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def _test_sets(generators: ClientGenerators) -> list[tuple[int, Tensor, Tensor]]:
    """Clients with their test images and labels."""
    found = []
    for client in range(generators.clients):
        x, y = generators.test_images(client, TEST_IMAGES)
        if y is not None and len(x):
            found.append((client, x, y))
    return found


def _key(generators: ClientGenerators) -> str:
    config, federation = generators.run.trained, generators.run.federation
    parts: list[Any] = [VERSION, config.data.model_dump(), config.shift.model_dump(), federation.clients]
    parts += [
        config.seed if config.data.limit else 0,
        [len(own) for own in federation.turns],
        torch.__version__,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
