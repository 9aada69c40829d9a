"""Local training that alternates between a GAN's discriminators and its generator (PaDPaF, Algorithm 1)."""

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
from fedssl.objectives.generative.adversarial import Adversarial, split_parameters


@dataclass(frozen=True)
class ProximalTerm:
    """μ/2·‖w − anchor‖² over the parameters that are being trained."""

    anchor: Mapping[str, Tensor]
    mu: float

    def __call__(self, parameters: Mapping[str, Tensor]) -> Tensor:
        own = {name: value for name, value in parameters.items() if name in self.anchor}
        return proximal(list(own.values()), [self.anchor[name] for name in own], self.mu)


class AlternatingTraining(Method):
    """Base class of methods for generative models: local training with alternating steps.

    Subclasses define what is shared, and how the server aggregates it.
    """

    discriminator_steps: int = Field(3, ge=1, description="T_D: discriminator steps per generator step")
    discriminator_rate: float = Field(
        2.0, gt=0, description="learning rate of the discriminators, as a multiple of train.lr"
    )
    beta1: float = Field(0.5, ge=0, lt=1, description="β₁ of the clients' Adam")
    beta2: float = Field(0.9, ge=0, lt=1, description="β₂ of the clients' Adam")
    decay: float = Field(
        0.99, gt=0, le=1, description="factor of the clients' learning rate after every round"
    )
    loopless: bool = Field(
        False, description="draw the number of local steps at random, with train.epochs as its mean"
    )

    def train_model(
        self, client: Client, model: Model, proximal_term: ProximalTerm | None = None, purpose: str = "train"
    ) -> Training:
        """Minimize the objective on local data, with alternating steps if it is adversarial.

        Args:
            client: the client, with its images and options.
            model: the model to train in place.
            proximal_term: added to every loss, if given.
            purpose: names the client's random streams; a second model needs another name.
        """
        client = replace(client, config=self._decayed(client))
        epochs = self._epochs(client, purpose)
        if isinstance(client.objective, Adversarial):
            return self._train_alternately(client, client.objective, model, epochs, proximal_term, purpose)
        objective = objective_loss(client, model)
        own = dict(model.named_parameters())
        loss = objective if proximal_term is None else lambda batch: objective(batch) + proximal_term(own)
        return train_locally(client, model=model, loss=loss, epochs=epochs, purpose=purpose)

    def _train_alternately(
        self,
        client: Client,
        objective: Adversarial,
        model: Model,
        epochs: float,
        proximal_term: ProximalTerm | None,
        purpose: str,
    ) -> Training:
        """Train the discriminators on every batch, and the generator after every T_D batches."""
        config = client.config
        if config.compile:
            raise ConfigError("train.compile=true does not support GANs: set train.compile=false")
        discriminators, generator = split_parameters(model)
        rate = learning_rate(config, client.round, client.rounds)
        betas = (self.beta1, self.beta2)
        slow = Optimizer(list(generator.values()), config, rate, betas)
        fast = Optimizer(list(discriminators.values()), config, rate * self.discriminator_rate, betas)
        order, draws = client.rng(f"{purpose}/order"), client.rng(f"{purpose}/views")
        model.train()
        values = objective.prepare(model, client.images, client.round, client.rng(f"{purpose}/prepare"))
        discriminator_loss, generator_loss = torch.zeros(2, device=client.device)
        steps = generator_steps = seen = 0

        def step(loss: Tensor, optimizer: Optimizer, own: Mapping[str, Tensor]) -> Tensor:
            value = loss if proximal_term is None else loss + proximal_term(own)
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            if config.clip:
                nn.utils.clip_grad_norm_(optimizer.parameters, config.clip)
            optimizer.step()
            return loss.detach()

        def step_generator(labels: Tensor | None) -> Tensor:
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
            discriminator_loss += step(loss, fast, discriminators)
            steps, seen = steps + 1, seen + len(positions)
            if steps % self.discriminator_steps == 0:
                generator_loss += step_generator(labels)
                generator_steps += 1
            client.check_deadline()
        if not generator_steps:  # a round shorter than T_D would never train the generator
            generator_loss, generator_steps = step_generator(labels), 1
        values["generator_loss"] = float(generator_loss) / generator_steps
        mean = float(discriminator_loss) / steps
        if not math.isfinite(mean + values["generator_loss"]):
            raise ClientFailure(f"loss is {mean} after {steps} steps")
        return Training(mean, steps, seen, values)

    def _decayed(self, client: Client) -> TrainConfig:
        config = client.config
        return config.model_copy(update={"lr": config.lr * self.decay ** (client.round - 1)})

    def _epochs(self, client: Client, purpose: str) -> float:
        """Local epochs; for a loopless client, drawn from a geometric distribution (line 10)."""
        if not self.loopless:
            return client.config.epochs
        per_epoch = max(1, len(client.images) // min(client.config.batch_size, len(client.images)))
        continuing = max(0.0, 1 - 1 / (client.config.epochs * per_epoch))
        steps = torch.empty(()).geometric_(1 - continuing, generator=client.rng(f"{purpose}/loopless"))
        return float(steps) / per_epoch
