"""Images from the generators of a run's clients, after the last round."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol, cast

import torch
from torch import Tensor, nn

from fedssl.data.federation import ClientImages
from fedssl.data.images import ImageSet
from fedssl.data.views import plain
from fedssl.engines.tasks import Task
from fedssl.errors import ConfigError, DataError
from fedssl.evaluation.loaded import LoadedRun
from fedssl.models.model import Model
from fedssl.objectives.generative.canvas import Canvas
from fedssl.objectives.generative.image import ImageModel, canvas_of
from fedssl.objectives.generative.losses import Latents, draw_latents
from fedssl.rng import torch_rng
from fedssl.state import restore

BATCH = 250


class ImageGenerator(Protocol):
    """The interface of objectives that generate images."""

    def latent_size(self, model: Model) -> int: ...

    def classes(self, model: Model) -> int: ...

    def generate(self, model: Model, latents: Latents) -> Tensor: ...


@dataclass
class ClientGenerators:
    """The generators of all clients of a run, and the clients' real images.

    Args:
        run: a run whose objective generates images.
    """

    run: LoadedRun
    _models: dict[int, Model] = field(default_factory=dict)

    def __post_init__(self) -> None:
        objective = self.run.trained.objective
        if not hasattr(objective, "generate"):
            raise ConfigError(
                f"objective.name={objective.name} generates no images: train objective.name=gan, "
                "conditional-gan or vae with method.name=padpaf"
            )
        self.objective = cast(ImageGenerator, objective)

    @property
    def clients(self) -> int:
        return self.run.federation.clients

    @property
    def device(self) -> torch.device:
        return self.run.device

    @property
    def classes(self) -> int:
        """The number of classes of a conditional model; 0 for an unconditional one."""
        return self.objective.classes(self.model(0))

    @property
    def canvas(self) -> Canvas:
        if not isinstance(self.run.trained.objective, ImageModel):
            raise ConfigError(
                f"objective.name={self.run.trained.objective.name} generates points of a plane, not images: "
                "use `simpson` with this run"
            )
        return canvas_of(self.model(0))

    def normalize(self, pixels: Tensor) -> Tensor:
        """Convert uint8 images [B, H, W, C] to the networks' inputs."""
        data = self.run.trained.data
        return plain(pixels.to(self.device), data.mean, data.std)

    def rng(self, *purpose: int | str) -> torch.Generator:
        return torch_rng(self.run.config.seed, "studio", *purpose)

    def model(self, client: int) -> Model:
        """The model that the client would start its next round with, in evaluation mode.

        Its batch statistics are recomputed, see `recompute_statistics`.
        """
        if not 0 <= client < self.clients:
            raise ConfigError(f"there is no client {client}: the run has clients 0 to {self.clients - 1}")
        if client not in self._models:
            model = copy.deepcopy(self._received(client))
            recompute_statistics(self.objective, model, self.rng("settle"))
            self._models[client] = model
        return self._models[client]

    def latents(self, count: int, *purpose: int | str) -> Latents:
        """Draw latents; the same purpose gives the same latents."""
        model = self.model(0)
        return draw_latents(
            count, self.objective.latent_size(model), self.objective.classes(model), self.rng(*purpose)
        )

    # --- real images ---------------------------------------------------------------------------------

    def train_images(self, client: int, count: int) -> tuple[Tensor, Tensor | None]:
        """At most `count` of the client's own images (uint8 NHWC) with their labels, in random order."""
        images, labels = [], []
        for turn, own in enumerate(self._own(client)):
            order = torch.randperm(len(own), generator=self.rng("train images", client, turn))
            x, y = own.batch(order[: -(-count // self._turns)])
            images.append(x)
            labels.append(y)
        known = [y for y in labels if y is not None]
        return torch.cat(images)[:count], torch.cat(known)[:count] if known else None

    def plain_images(self, split: Literal["train", "test"], count: int) -> tuple[Tensor, Tensor | None]:
        """At most `count` of the data set's images without shift, in random order."""
        images = self.run.federation.train if split == "train" else self._test()
        order = torch.randperm(len(images), generator=self.rng("plain images", split))[:count]
        return images.x[order], None if images.y is None else images.y[order]

    def test_images(self, client: int, count: int) -> tuple[Tensor, Tensor | None]:
        """At most `count` test images with the client's shift; the clients' test images are disjoint."""
        test = self._test()
        x, y = test.x[client :: self.clients], None if test.y is None else test.y[client :: self.clients]
        x, y = x[:count], None if y is None else y[:count]
        return self.apply_shift(x, client), y

    def apply_shift(self, x: Tensor, client: int) -> Tensor:
        """Apply a client's shift to images; with `partition.workers`, each of its clients gets a share."""
        own = self._own(client)
        parts = zip(own, x.tensor_split(len(own)), strict=True)
        return torch.cat([each.shift.apply(part, each.client, each.clients) for each, part in parts])

    def seen_labels(self, client: int) -> list[int]:
        """The sorted labels that occur among a client's images."""
        y = self.run.federation.train.y
        if y is None:
            return []
        own = y[torch.from_numpy(self.run.federation.parts[client])]
        return sorted(set(own.tolist()))

    def _test(self) -> ImageSet:
        if self.run.federation.test is None:
            raise DataError(f"{self.run.federation.train.name} has no test images")
        return self.run.federation.test

    @property
    def _turns(self) -> int:
        turns = self.run.federation.turns
        return len(turns[0]) if turns else 1

    def _own(self, client: int) -> list[ClientImages]:
        federation, config = self.run.federation, self.run.trained
        return [federation.images_of(client, config, turn + 1) for turn in range(self._turns)]

    # --- generated images ----------------------------------------------------------------------------

    @torch.no_grad()
    def draw(self, client: int, latents: Latents) -> Tensor:
        """Generate uint8 images [B, H, W, C] with a client's generator."""
        model = self.model(client)
        drawn = [self.objective.generate(model, each.to(self.device)) for each in _split(latents)]
        return self.canvas.pixels(torch.cat(drawn))

    @cached_property
    def untrained(self) -> Model:
        """The model that every client began its first round with, in evaluation mode."""
        runner = self.run.models.runner
        model = copy.deepcopy(runner.model)
        restore(model, runner.initial)
        return model.eval()

    @cached_property
    def shares_content(self) -> bool:
        """Whether all clients have the same content encoder."""
        first, *others = (
            list(self.model(client).part("encoder").parameters()) for client in range(self.clients)
        )
        return all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))

    @torch.no_grad()
    def features(self, client: int | None, pixels: Tensor, kind: str) -> Tensor:
        """φ^c ("content") or φ^s ("style") of images.

        Args:
            client: whose networks; none: the untrained ones.
            pixels: uint8 images [B, H, W, C].
            kind: content or style.
        """
        model = self.untrained if client is None else self.model(client)
        encoder = model.part("encoder" if kind == "content" else "style_encoder")
        parts = [encoder(self.normalize(part)).cpu() for part in torch.split(pixels, BATCH)]
        return torch.cat(parts)

    def _received(self, client: int) -> Model:
        run, models = self.run, self.run.models
        number = run.trained.rounds + 1
        broadcast = models.method.broadcast(run.server.seen_by(client), client, number)
        received = models.runner.receive(Task(number, client, broadcast, run.memory_rounds.get(client, 0)))
        return cast(Model, received.part("personal")) if received.has("personal") else received


@torch.no_grad()
def recompute_statistics(
    objective: ImageGenerator, model: Model, rng: torch.Generator, batches: int = 8
) -> None:
    """Recompute the generator's batch statistics on what it generates now; leaves it in evaluation mode.

    A client's running statistics are those of the generator that it trained, which the server has changed
    since.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    model.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over batches
        norm.train()
    device = next(model.parameters()).device
    for _ in range(batches):
        latents = draw_latents(BATCH, objective.latent_size(model), objective.classes(model), rng)
        objective.generate(model, latents.to(device))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()


def _split(latents: Latents) -> Iterator[Latents]:
    for start in range(0, len(latents), BATCH):
        part = slice(start, start + BATCH)
        labels = None if latents.labels is None else latents.labels[part]
        yield Latents(latents.content[part], latents.style[part], labels)
