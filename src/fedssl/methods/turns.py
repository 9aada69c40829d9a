"""Local training in turns: a GAN's discriminators, and now and then its generator (PaDPaF, Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import Tensor, nn

from fedssl.errors import ConfigError
from fedssl.methods.client import Client, ClientFailure
from fedssl.methods.method import Method
from fedssl.methods.optimizers import Optimizer
from fedssl.methods.options import TrainConfig
from fedssl.methods.proximal import proximal
from fedssl.methods.training import (
    Training,
    autocast,
    batches,
    count_steps,
    learning_rate,
    objective_loss,
    train_locally,
)
from fedssl.models.model import Model
from fedssl.objectives.generative.adversarial import Adversarial, players


@dataclass(frozen=True)
class Pull:
    """μ/2·‖w − anchor‖² on top of what a player minimises, over its own parameters."""

    anchor: Mapping[str, Tensor]
    mu: float

    def __call__(self, parameters: Mapping[str, Tensor]) -> Tensor:
        own = {name: value for name, value in parameters.items() if name in self.anchor}
        return proximal(list(own.values()), [self.anchor[name] for name in own], self.mu)


class Turns(Method):
    """How a client trains a generative model; what leaves it is up to the method."""

    discriminator_steps: int = Field(3, ge=1, description="T_D: discriminator steps to one of the generator")
    discriminator_rate: float = Field(
        2.0, gt=0, description="learning rate of the discriminators, as a multiple of train.lr"
    )
    beta1: float = Field(0.5, ge=0, lt=1, description="of the clients' Adam")
    beta2: float = Field(0.9, ge=0, lt=1, description="of the clients' Adam")
    decay: float = Field(
        0.99, gt=0, le=1, description="the clients' learning rate is multiplied by it after every round"
    )
    loopless: bool = Field(
        False, description="stop by chance after every step, after train.epochs on average, and not in time"
    )

    def train_model(
        self, client: Client, model: Model, pull: Pull | None = None, purpose: str = "train"
    ) -> Training:
        """Minimise the objective on local data: in turns if it is adversarial, else all at once."""
        client = replace(client, config=self._decayed(client))
        epochs = self._epochs(client, purpose)
        if isinstance(client.objective, Adversarial):
            return self._in_turns(client, client.objective, model, epochs, pull, purpose)
        objective = objective_loss(client, model)
        own = dict(model.named_parameters())
        loss = objective if pull is None else lambda batch: objective(batch) + pull(own)
        return train_locally(client, model=model, loss=loss, epochs=epochs, purpose=purpose)

    def _in_turns(
        self,
        client: Client,
        objective: Adversarial,
        model: Model,
        epochs: float,
        pull: Pull | None,
        purpose: str,
    ) -> Training:
        """Every batch trains the discriminators; after every T_D of them the generator has its turn."""
        config = client.config
        if config.compile:
            raise ConfigError("train.compile=true is for encoders that train, not for a GAN's networks")
        judges, generator = players(model)
        rate = learning_rate(config, client.round, client.rounds)
        betas = (self.beta1, self.beta2)
        slow = Optimizer(list(generator.values()), config, rate, betas)
        fast = Optimizer(list(judges.values()), config, rate * self.discriminator_rate, betas)
        order, draws = client.rng(f"{purpose}/order"), client.rng(f"{purpose}/views")
        model.train()
        beginning = client.rng(f"{purpose}/prepare")
        values = objective.prepare(model, client.images, client.round, beginning)
        judged, deceived = torch.zeros((), device=client.device), torch.zeros((), device=client.device)
        steps = turns = seen = 0

        def step(loss: Tensor, optimizer: Optimizer, own: Mapping[str, Tensor]) -> Tensor:
            value = loss if pull is None else loss + pull(own)
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            if config.clip:
                nn.utils.clip_grad_norm_(optimizer.parameters, config.clip)
            optimizer.step()
            return loss.detach()

        def deceive(labels: Tensor | None) -> Tensor:
            with autocast(client.device, config.precision):
                loss = objective.generator_loss(model, config.batch_size, labels, draws)
            return step(loss, slow, generator)

        planned = count_steps(len(client.images), config.batch_size, epochs)
        for positions in batches(len(client.images), config.batch_size, epochs, order):
            rate = learning_rate(config, client.round, client.rounds, steps / planned)
            slow.lr, fast.lr = rate, rate * self.discriminator_rate
            images, labels = client.images.batch(positions)
            images = client.views(images, draws, client.device)[0]
            labels = None if labels is None else labels.to(client.device)
            with autocast(client.device, config.precision):
                loss = objective.discriminator_loss(model, images, labels, draws)
            judged += step(loss, fast, judges)
            steps, seen = steps + 1, seen + len(positions)
            if steps % self.discriminator_steps == 0:
                deceived += deceive(labels)
                turns += 1
            client.check_deadline()
        if not turns:  # a round shorter than T_D would never train the generator
            deceived, turns = deceive(labels), 1
        values["generator_loss"] = float(deceived) / turns
        mean = float(judged) / steps
        if not math.isfinite(mean + values["generator_loss"]):
            raise ClientFailure(f"loss is {mean} after {steps} steps")
        return Training(mean, steps, seen, values)

    def _decayed(self, client: Client) -> TrainConfig:
        config = client.config
        return config.model_copy(update={"lr": config.lr * self.decay ** (client.round - 1)})

    def _epochs(self, client: Client, purpose: str) -> float:
        """Local epochs; of a loopless client as many steps as it takes until chance says stop (line 10)."""
        if not self.loopless:
            return client.config.epochs
        per_epoch = max(1, len(client.images) // min(client.config.batch_size, len(client.images)))
        go_on = max(0.0, 1 - 1 / (client.config.epochs * per_epoch))
        steps = torch.empty(()).geometric_(1 - go_on, generator=client.rng(f"{purpose}/loopless"))
        return float(steps) / per_epoch
