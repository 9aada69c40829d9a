"""Re-styling by content transfer (PaDPaF, Algorithm 2), and anonymization: the same to a reference client.

An image's content features are mapped to a content latent, from which another client's generator draws in
its own style. The maps are learned on what the generators draw themselves.
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
from fedssl.generative.grids import save_panels
from fedssl.generative.judge import find_judge
from fedssl.generative.sampling import Studio
from fedssl.generative.use import Use
from fedssl.methods.optimizers import Optimizer
from fedssl.methods.options import TrainConfig
from fedssl.objectives.barlow_twins import barlow_twins
from fedssl.objectives.generative.adversarial import frozen
from fedssl.objectives.generative.losses import Latents, draw_latents
from fedssl.rng import derive
from fedssl.state import restore
from fedssl.storage import load_tensors, save_tensors

SHOWN = 12


class Map(nn.Module):
    """From features (and a label, where there are classes) to a latent (Eq. 13).

    Features are standardised by what the map has seen.
    """

    def __init__(self, features: int, latent: int, hidden: int, classes: int = 0) -> None:
        super().__init__()
        self.classes = classes
        self.norm = nn.BatchNorm1d(features, affine=False)
        self.layers = nn.Sequential(
            nn.Linear(features + classes, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, latent)
        )

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        given = self.norm(features)
        if self.classes and labels is not None:
            given = torch.cat((given, F.one_hot(labels, self.classes).to(given.dtype)), dim=1)
        out: Tensor = self.layers(given)
        return out


class Maps(nn.Module):
    """𝔷^c for all, and 𝔷^s of every client."""

    def __init__(
        self, content: int, style: int, latent: int, hidden: int, clients: int, classes: int
    ) -> None:
        super().__init__()
        self.content = Map(content, latent, hidden, classes)
        self.style = nn.ModuleList(Map(style, latent, hidden) for _ in range(clients))


class Mapped(Use):
    """What learning the maps takes."""

    steps: int = Field(1000, ge=1, description="steps of Adam")
    batch: int = Field(64, ge=4, description="images a step")
    hidden: int = Field(256, ge=1, description="width of the maps' hidden layer")
    rate: float = Field(2e-3, gt=0, description="learning rate of the first step; it falls to 0")
    latents: float = Field(
        1.0,
        ge=0,
        description="weight of the error of z^c and z^s, which are known of generated images; 0: none",
    )
    real: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of the steps that take a client's real images and not generated ones; above 0, "
        "whoever learns the maps needs the images of all clients",
    )

    def maps(self, studio: Studio, folder: Path) -> Maps:
        """From a file of an earlier use with the same options, else learned now."""
        model = studio.model(0)
        if not model.has("style_encoder") or not model.has("projector"):
            raise ConfigError(
                "re-styling needs content and style encoders: train gan, conditional-gan or vae"
            )
        about = {name: value for name, value in self.model_dump().items() if name in Mapped.model_fields}
        about |= {"name": "", "clients": studio.clients, "classes": studio.classes}
        drawn = studio.draw(0, studio.latents(2, "widths"))
        content, style = (studio.features(0, drawn, kind).shape[1] for kind in ("content", "style"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(0, "maps"))
            latent = studio.objective.latent_size(model)
            maps = Maps(content, style, latent, self.hidden, studio.clients, studio.classes)
        maps = maps.to(studio.device)
        file = folder / "maps.safetensors"
        if file.exists():
            state, known = load_tensors(file)
            if known == about:
                restore(maps, state)
                return maps.eval()
        self._learn(maps, studio)
        save_tensors(file, {name: value.cpu() for name, value in maps.state_dict().items()}, about)
        return maps.eval()

    def _learn(self, maps: Maps, studio: Studio) -> None:
        optimizer = Optimizer(
            list(maps.parameters()), TrainConfig(optimizer="adam", weight_decay=0.0), self.rate
        )
        rng = studio.rng("maps")
        maps.train()
        for step in range(self.steps):
            optimizer.lr = self.rate * (1 - step / self.steps)
            client = int(torch.randint(studio.clients, (), generator=rng))
            is_real = float(torch.rand((), generator=rng)) < self.real
            loss = self._step(maps, studio, client, is_real, rng)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    def _step(self, maps: Maps, studio: Studio, client: int, is_real: bool, rng: torch.Generator) -> Tensor:
        """Lines 4 to 9 of Algorithm 2."""
        model, objective = studio.model(client), studio.objective
        given, labels = self._images(studio, client, is_real, rng)
        with torch.no_grad():
            x = objective.generate(model, given) if isinstance(given, Latents) else given
            content, style = model.part("encoder")(x), model.part("style_encoder")(x)
        z_content, z_style = maps.content(content, labels), maps.style[client](style)
        with frozen(model, model.roles):
            again = objective.generate(model, Latents(z_content, z_style, labels))
            projector = model.part("projector")
            before, after = projector(content), projector(model.part("encoder")(again))
        loss: Tensor = barlow_twins(before, after, 0.005) / before.shape[1]
        if isinstance(given, Latents) and self.latents:
            errors = F.mse_loss(z_content, given.content) + F.mse_loss(z_style, given.style)
            loss = loss + self.latents * errors
        return loss

    def _images(
        self, studio: Studio, client: int, is_real: bool, rng: torch.Generator
    ) -> tuple[Latents | Tensor, Tensor | None]:
        """Latents to draw from, or real images of the client; and the labels, if the generator takes any."""
        if not is_real:
            size, classes = studio.objective.latent_size(studio.model(client)), studio.classes
            latents = draw_latents(self.batch, size, classes, rng).to(studio.device)
            return latents, latents.labels
        own = studio.run.federation.images_of(client, studio.run.trained)
        x, y = own.batch(torch.randint(len(own), (self.batch,), generator=rng))
        known = y.to(studio.device) if y is not None and studio.classes else None
        return studio.normalised(x), known


class Restyle(Mapped):
    """Images of one client (or the test images as they are) in the style of another: Figs. 15, 16."""

    source: int = Field(-1, ge=-1, description="the client whose test images are taken; −1: as they are")
    target: int = Field(-1, ge=-1, description="the client in whose style they are drawn; −1: each in turn")
    count: int = Field(500, ge=1, description="images")

    def do(self, studio: Studio, folder: Path) -> dict[str, Any]:
        maps = self.maps(studio, folder)
        x, y = self._taken(studio)
        labels = y if studio.classes else None
        targets = range(studio.clients) if self.target < 0 else [self.target]
        panels = {"source": x[:SHOWN]}
        if self.source >= 0:
            panels["reconstructed"] = reconstruct(studio, maps, self.source, x[:SHOWN], _some(labels, SHOWN))
        judge = None if y is None else find_judge(studio)
        kept = []
        for client in targets:
            drawn = transfer(studio, maps, client, x, labels)
            panels[f"as client {client}"] = drawn[:SHOWN]
            if judge is not None and y is not None:
                kept.append(float((judge.labels(drawn, client) == y).float().mean()))
        file = self.file(folder, "restyle")
        save_panels(file, panels, SHOWN, wide=1)
        found: dict[str, Any] = {"picture": str(file), "source": self.source, "images": len(x)}
        if judge is not None:
            found |= {"kept": sum(kept) / len(kept), "clients": kept, "judge": judge.accuracy}
        return found

    def _taken(self, studio: Studio) -> tuple[Tensor, Tensor | None]:
        if self.source >= 0:
            studio.model(self.source)  # says so if there is no such client
            return studio.test_images(self.source, self.count)
        test = studio.run.federation.test
        if test is None:
            raise DataError(f"{studio.run.federation.train.name} has no test images: choose a source client")
        return test.x[: self.count], None if test.y is None else test.y[: self.count]


class Anonymize(Mapped):
    """Every image of a folder redrawn in the style of a reference client; only its content is kept."""

    images: str = Field("", description="the folder of images, at any depth")
    reference: int = Field(0, ge=0, description="the client in whose style they are drawn")
    to: str = Field("", description="the folder that the new images go to (default: `anonymized` beside it)")

    def do(self, studio: Studio, folder: Path) -> dict[str, Any]:
        from fedssl.use.embed import find_images

        if not self.images:
            raise ConfigError("images=FOLDER says which images to anonymize")
        root = Path(self.images).expanduser()
        target = Path(self.to).expanduser() if self.to else folder / "anonymized"
        paths = find_images(root)
        canvas, maps = studio.canvas, self.maps(studio, folder)
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
        labels = content_labels(studio, x) if studio.classes else None
        drawn = transfer(studio, maps, self.reference, x, labels)
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
def transfer(studio: Studio, maps: Maps, client: int, x: Tensor, labels: Tensor | None) -> Tensor:
    """The content of images in the style of a client (line 11): each with a style drawn at random."""
    styles = studio.latents(len(x), "transfer").style
    return studio.draw(client, Latents(_content(studio, maps, x, labels), styles, labels))


@torch.no_grad()
def reconstruct(studio: Studio, maps: Maps, client: int, x: Tensor, labels: Tensor | None) -> Tensor:
    """Images of a client from their own content and style latents."""
    style = maps.style[client](studio.features(client, x, "style").to(studio.device)).cpu()
    return studio.draw(client, Latents(_content(studio, maps, x, labels), style, labels))


def _content(studio: Studio, maps: Maps, x: Tensor, labels: Tensor | None) -> Tensor:
    """𝔷^c of images and their labels."""
    known = None if labels is None else labels.to(studio.device)
    latents: Tensor = maps.content(_features(studio, x).to(studio.device), known)
    return latents.cpu()


def content_labels(studio: Studio, x: Tensor) -> Tensor:
    """Labels of images from their content features, by a linear probe on generated images.

    Every client draws the labels that it has images of, so that nobody's images are needed.
    """
    features, labels = [], []
    for client in range(studio.clients):
        latents = studio.latents(500, "content labels", client)
        seen = torch.tensor(studio.seen_labels(client))
        y = seen[torch.arange(len(latents)) % len(seen)]
        drawn = studio.draw(client, Latents(latents.content, latents.style, y))
        features.append(studio.features(client, drawn, "content"))
        labels.append(y)
    probe = linear.fit(torch.cat(features), torch.cat(labels), studio.classes)
    return probe.predict(_features(studio, x))


def _features(studio: Studio, x: Tensor) -> Tensor:
    """Content features, by the shared encoder: any client's will do."""
    return studio.features(0, x, "content")


def _some(labels: Tensor | None, count: int) -> Tensor | None:
    return None if labels is None else labels[:count]
