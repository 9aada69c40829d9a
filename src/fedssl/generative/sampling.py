"""Images from the generative models of a run: each client's own, after its last round."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from fedssl.engines.tasks import Task
from fedssl.errors import ConfigError
from fedssl.evaluation.protocols import Finished
from fedssl.generative.image import canvas_of
from fedssl.generative.losses import Latents, draw_latents
from fedssl.models.model import Model
from fedssl.rng import torch_rng

BATCH = 250


class Draws(Protocol):
    """What an objective that generates images can do."""

    def latent_size(self, model: Model) -> int: ...

    def classes(self, model: Model) -> int: ...

    def generate(self, model: Model, latents: Latents) -> Tensor: ...


@dataclass
class Studio:
    """The generators of all clients of a run, ready to draw."""

    run: Finished
    _models: dict[int, Model] = field(default_factory=dict)

    def __post_init__(self) -> None:
        objective = self.run.trained.objective
        if not hasattr(objective, "generate"):
            raise ConfigError(
                f"objective.name={objective.name} generates nothing: train objective.name=gan, "
                "conditional-gan or vae with method.name=padpaf"
            )
        self.objective = cast(Draws, objective)

    @property
    def clients(self) -> int:
        return self.run.federation.clients

    @property
    def device(self) -> torch.device:
        return self.run.device

    @property
    def classes(self) -> int:
        """Of a conditional model; 0: it is none."""
        return self.objective.classes(self.model(0))

    def rng(self, *purpose: int | str) -> torch.Generator:
        return torch_rng(self.run.config.seed, "studio", *purpose)

    def model(self, client: int) -> Model:
        """What the client would begin its next round with, with fresh statistics, in evaluation mode."""
        if not 0 <= client < self.clients:
            raise ConfigError(f"there is no client {client}: the run has clients 0 to {self.clients - 1}")
        if client not in self._models:
            model = copy.deepcopy(self._received(client))
            settle(self.objective, model, self.rng("settle"))
            self._models[client] = model
        return self._models[client]

    def latents(self, count: int, *purpose: int | str) -> Latents:
        """The same for every client that asks for the same purpose."""
        model = self.model(0)
        return draw_latents(
            count, self.objective.latent_size(model), self.objective.classes(model), self.rng(*purpose)
        )

    @torch.no_grad()
    def draw(self, client: int, latents: Latents) -> Tensor:
        """uint8 images [B, H, W, C] by a client's generator."""
        model = self.model(client)
        canvas = canvas_of(model)
        parts = [
            canvas.pixels(self.objective.generate(model, each.to(self.device))) for each in _split(latents)
        ]
        return torch.cat(parts)

    def _received(self, client: int) -> Model:
        run, models = self.run, self.run.models
        number = run.trained.rounds + 1
        broadcast = models.method.broadcast(models.engine.at(run.server, client), client, number)
        received = models.runner.receive(Task(number, client, broadcast, run.memory_rounds.get(client, 0)))
        return cast(Model, received.part("personal")) if received.has("personal") else received


@torch.no_grad()
def settle(objective: Draws, model: Model, rng: torch.Generator, batches: int = 8) -> None:
    """Measure the generator's batch statistics anew, on what it draws now; leave it in evaluation mode.

    A client's running statistics are those of the generator it trained. The server has moved it since.
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
