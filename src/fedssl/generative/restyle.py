"""Content transfer to another client's style (PaDPaF, Algorithm 2), and anonymization by it.

An image's content features are mapped to a content latent, from which another client's generator renders an
image in its own style. The maps are trained on generated images.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.data.decoding import read_image
from fedssl.errors import ConfigError, DataError
from fedssl.evaluation import linear
from fedssl.evaluation.models import digest
from fedssl.generative.grids import save_panels
from fedssl.generative.reference_classifier import load_reference_classifier
from fedssl.generative.sampling import ClientGenerators
from fedssl.generative.use import Use
from fedssl.methods.optimizers import Optimizer
from fedssl.methods.options import TrainConfig
from fedssl.objectives.barlow_twins import barlow_twins
from fedssl.objectives.generative.adversarial import frozen
from fedssl.objectives.generative.losses import Latents, draw_latents
from fedssl.rng import derive
from fedssl.state import restore
from fedssl.tensorfile import load_tensors, save_tensors

SHOWN = 12  # images in a picture


class LatentMap(nn.Module):
    """Maps features (and the label, if there are classes) to a latent (Eq. 13)."""

    def __init__(self, features: int, latent: int, hidden: int, classes: int = 0) -> None:
        super().__init__()
        self.classes = classes
        self.norm = nn.BatchNorm1d(features, affine=False)
        self.layers = nn.Sequential(
            nn.Linear(features + classes, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, latent)
        )

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        x = self.norm(features)
        if self.classes and labels is not None:
            x = torch.cat((x, F.one_hot(labels, self.classes).to(x.dtype)), dim=1)
        out: Tensor = self.layers(x)
        return out


class LatentMaps(nn.Module):
    """The content map 𝔷^c, shared by all clients, and the style map 𝔷^s of each client."""

    def __init__(
        self, content: int, style: int, latent: int, hidden: int, clients: int, classes: int
    ) -> None:
        super().__init__()
        self.content = LatentMap(content, latent, hidden, classes)
        self.style = nn.ModuleList(LatentMap(style, latent, hidden) for _ in range(clients))


class ContentTransfer(Use):
    """Base class of uses that need latent maps; its fields are the options of their training."""

    steps: int = Field(1000, ge=1, description="steps of Adam")
    batch: int = Field(64, ge=4, description="batch size")
    hidden: int = Field(256, ge=1, description="width of the maps' hidden layer")
    rate: float = Field(2e-3, gt=0, description="initial learning rate; it decays linearly to 0")
    latents: float = Field(
        1.0,
        ge=0,
        description="weight of the squared error of z^c and z^s, which are known for generated images",
    )
    real: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the steps on real instead of generated images; above 0, training the maps "
        "needs the images of all clients",
    )

    def load_maps(self, generators: ClientGenerators, folder: Path) -> LatentMaps:
        """Load the maps from an earlier use of the same model with the same options, or train them."""
        model = generators.model(0)
        if not model.has("style_encoder") or not model.has("projector"):
            raise ConfigError(
                "re-styling needs content and style encoders: train gan, conditional-gan or vae"
            )
        options = self.model_dump(include=set(ContentTransfer.model_fields))
        options |= {"name": "", "clients": generators.clients, "classes": generators.classes}
        options["model"] = digest(model)  # another one after the run has been continued
        drawn = generators.draw(0, generators.latents(2, "widths"))
        content, style = (generators.features(0, drawn, kind).shape[1] for kind in ("content", "style"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(0, "maps"))
            latent = generators.objective.latent_size(model)
            maps = LatentMaps(content, style, latent, self.hidden, generators.clients, generators.classes)
        maps = maps.to(generators.device)
        file = folder / "maps.safetensors"
        if file.exists():
            state, known = load_tensors(file)
            if known == options:
                restore(maps, state)
                return maps.eval()
        self._train(maps, generators)
        save_tensors(file, {name: value.cpu() for name, value in maps.state_dict().items()}, options)
        return maps.eval()

    def _train(self, maps: LatentMaps, generators: ClientGenerators) -> None:
        optimizer = Optimizer(
            list(maps.parameters()), TrainConfig(optimizer="adam", weight_decay=0.0), self.rate
        )
        rng = generators.rng("maps")
        maps.train()
        for step in range(self.steps):
            optimizer.lr = self.rate * (1 - step / self.steps)
            client = int(torch.randint(generators.clients, (), generator=rng))
            is_real = float(torch.rand((), generator=rng)) < self.real
            loss = self._step(maps, generators, client, is_real, rng)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    def _step(
        self, maps: LatentMaps, generators: ClientGenerators, client: int, is_real: bool, rng: torch.Generator
    ) -> Tensor:
        """The loss of one batch (lines 4 to 9 of Algorithm 2)."""
        model, objective = generators.model(client), generators.objective
        source, labels = self._batch(generators, client, is_real, rng)
        with torch.no_grad():
            x = objective.generate(model, source) if isinstance(source, Latents) else source
            content, style = model.part("encoder")(x), model.part("style_encoder")(x)
        z_content, z_style = maps.content(content, labels), maps.style[client](style)
        with frozen(model, model.roles):
            redrawn = objective.generate(model, Latents(z_content, z_style, labels))
            projector = model.part("projector")
            before, after = projector(content), projector(model.part("encoder")(redrawn))
        loss: Tensor = barlow_twins(before, after, 0.005) / before.shape[1]
        if isinstance(source, Latents) and self.latents:
            errors = F.mse_loss(z_content, source.content) + F.mse_loss(z_style, source.style)
            loss = loss + self.latents * errors
        return loss

    def _batch(
        self, generators: ClientGenerators, client: int, is_real: bool, rng: torch.Generator
    ) -> tuple[Latents | Tensor, Tensor | None]:
        """Latents to generate from, or real images of the client; and labels for a conditional generator."""
        if not is_real:
            size, classes = generators.objective.latent_size(generators.model(client)), generators.classes
            latents = draw_latents(self.batch, size, classes, rng).to(generators.device)
            return latents, latents.labels
        own = generators.run.federation.images_of(client, generators.run.trained)
        x, y = own.batch(torch.randint(len(own), (self.batch,), generator=rng))
        known = y.to(generators.device) if y is not None and generators.classes else None
        return generators.normalize(x), known


class Restyle(ContentTransfer):
    """Render test images of one client (or without shift) in the style of another (Figs. 15, 16)."""

    source: int = Field(-1, ge=-1, description="the client whose test images are re-styled; −1: no shift")
    target: int = Field(-1, ge=-1, description="the client whose style they get; −1: every client")
    count: int = Field(500, ge=1, description="number of images")

    def apply(self, generators: ClientGenerators, folder: Path) -> dict[str, Any]:
        maps = self.load_maps(generators, folder)
        x, y = self._source_images(generators)
        labels = y if generators.classes else None
        targets = range(generators.clients) if self.target < 0 else [self.target]
        panels = {"source": x[:SHOWN]}
        if self.source >= 0:
            few = None if labels is None else labels[:SHOWN]
            panels["reconstructed"] = reconstruct(generators, maps, self.source, x[:SHOWN], few)
        classifier = None if y is None else load_reference_classifier(generators)
        kept = []
        for client in targets:
            drawn = transfer(generators, maps, client, x, labels)
            panels[f"as client {client}"] = drawn[:SHOWN]
            if classifier is not None and y is not None:
                kept.append(float((classifier.labels(drawn, client) == y).float().mean()))
        file = self.file(folder, "restyle")
        save_panels(file, panels, SHOWN, per_row=1)
        found: dict[str, Any] = {"picture": str(file), "source": self.source, "images": len(x)}
        if classifier is not None:
            found |= {
                "kept": sum(kept) / len(kept),
                "clients": kept,
                "classifier_accuracy": classifier.accuracy,
            }
        return found

    def _source_images(self, generators: ClientGenerators) -> tuple[Tensor, Tensor | None]:
        if self.source >= 0:
            generators.model(self.source)  # raises if there is no such client
            return generators.test_images(self.source, self.count)
        test = generators.run.federation.test
        if test is None:
            raise DataError(
                f"{generators.run.federation.train.name} has no test images: choose a source client"
            )
        return test.x[: self.count], None if test.y is None else test.y[: self.count]


class Anonymize(ContentTransfer):
    """Render every image of a folder in the style of a reference client; only its content is kept."""

    images: str = Field("", description="the folder of images, searched recursively")
    reference: int = Field(0, ge=0, description="the client whose style they get")
    to: str = Field("", description="the output folder (default: `anonymized` in the folder for pictures)")

    def apply(self, generators: ClientGenerators, folder: Path) -> dict[str, Any]:
        from fedssl.use.embed import find_images

        if not self.images:
            raise ConfigError("anonymize needs a folder of images: add images=FOLDER")
        root = Path(self.images).expanduser()
        target = Path(self.to).expanduser() if self.to else folder / "anonymized"
        paths = find_images(root)
        canvas, maps = generators.canvas, self.load_maps(generators, folder)
        shape = (canvas.side, canvas.side, canvas.channels)
        skipped: dict[str, str] = {}
        read: list[tuple[str, Tensor]] = []
        for path in paths:
            try:
                read.append((path, torch.from_numpy(np.array(read_image(root / path, shape)))))
            except (OSError, ValueError) as error:
                skipped[path] = str(error) or type(error).__name__
        if not read:
            raise DataError(f"none of the {len(paths)} images in {root} can be read")
        x = torch.stack([image for _, image in read])
        labels = predict_labels(generators, x) if generators.classes else None
        drawn = transfer(generators, maps, self.reference, x, labels)
        for (path, _), image in zip(read, drawn.numpy(), strict=True):
            file = (target / path).with_suffix(".png")
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.squeeze(2) if image.shape[2] == 1 else image).save(file)
        return {
            "images": len(read),
            "skipped": skipped,
            "reference": self.reference,
            "folder": str(target),
            "labels": "predicted from content features" if labels is not None else "none",
        }


@torch.no_grad()
def transfer(
    generators: ClientGenerators, maps: LatentMaps, client: int, x: Tensor, labels: Tensor | None
) -> Tensor:
    """Render images in the style of a client (line 11 of Algorithm 2), with random style latents.

    Args:
        generators: the run's generators.
        maps: the latent maps.
        client: the client whose style to use.
        x: uint8 images [N, H, W, C].
        labels: their labels, for a conditional generator.

    Returns:
        uint8 images of the same shape.
    """
    styles = generators.latents(len(x), "transfer").style
    return generators.draw(client, Latents(_content(generators, maps, x, labels), styles, labels))


@torch.no_grad()
def reconstruct(
    generators: ClientGenerators, maps: LatentMaps, client: int, x: Tensor, labels: Tensor | None
) -> Tensor:
    """Render images of a client from their own content and style features."""
    style = maps.style[client](generators.features(client, x, "style").to(generators.device)).cpu()
    return generators.draw(client, Latents(_content(generators, maps, x, labels), style, labels))


def _content(generators: ClientGenerators, maps: LatentMaps, x: Tensor, labels: Tensor | None) -> Tensor:
    """Content latents of images."""
    known = None if labels is None else labels.to(generators.device)
    latents: Tensor = maps.content(_features(generators, x).to(generators.device), known)
    return latents.cpu()


def predict_labels(generators: ClientGenerators, x: Tensor) -> Tensor:
    """Predict labels from content features with a linear probe that is trained on generated images.

    Every client generates the labels that it has images of, so no client's images are needed.
    """
    features, labels = [], []
    for client in range(generators.clients):
        latents = generators.latents(500, "content labels", client)
        seen = torch.tensor(generators.seen_labels(client))
        y = seen[torch.arange(len(latents)) % len(seen)]
        drawn = generators.draw(client, Latents(latents.content, latents.style, y))
        features.append(generators.features(client, drawn, "content"))
        labels.append(y)
    probe = linear.fit(torch.cat(features), torch.cat(labels), generators.classes)
    return probe.predict(_features(generators, x))


def _features(generators: ClientGenerators, x: Tensor) -> Tensor:
    """Content features; the encoder is shared, so any client's can be used."""
    return generators.features(0, x, "content")


def _some(labels: Tensor | None, count: int) -> Tensor | None:
    return None if labels is None else labels[:count]
