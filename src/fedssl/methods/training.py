"""Local training: the inner loop that all methods share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedssl.methods.client import Client, ClientFailure
from fedssl.methods.compiling import compile_encoders
from fedssl.methods.optimizers import Optimizer
from fedssl.methods.options import TrainConfig
from fedssl.models.model import Model
from fedssl.models.stages import depth_scales
from fedssl.threads import run_ahead
from fedssl.transfer import copy_to


@dataclass(frozen=True)
class Training:
    """The result of a client's local training."""

    loss: float
    steps: int
    views: int
    values: dict[str, float] = field(default_factory=dict)  # further numbers for metrics.jsonl


@dataclass(frozen=True)
class Batch:
    """A batch of the client's images, and views of them."""

    images: Tensor  # without augmentation, uint8 [B, H, W, C]
    views: list[Tensor]  # normalized float32 [B, C, H, W]
    labels: Tensor | None
    rng: torch.Generator  # on the CPU, for random numbers of the loss
    positions: Tensor  # of these images in the client's own list, on the CPU


Loss = Callable[[Batch], Tensor]


def objective_loss(client: Client, model: Model | None = None) -> Loss:
    """The client's objective on its model, or on another model with the same parts."""
    trained = client.model if model is None else model
    return lambda batch: client.objective.loss(trained, batch.views, batch.labels, batch.rng)


def train_locally(
    client: Client,
    *,
    loss: Loss | None = None,
    model: Model | None = None,
    parameters: list[nn.Parameter] | None = None,
    epochs: float | None = None,
    purpose: str = "train",
) -> Training:
    """Minimize a loss over the client's images with a new optimizer.

    Args:
        client: the client, with its images and options.
        loss: the loss of a batch; None: the objective.
        model: the model to train in place; None: the client's.
        parameters: the parameters to update; None: those that the objective trains.
        epochs: the number of epochs; None: `train.epochs`.
        purpose: names the client's random streams; a second training in a round needs another name.

    Returns:
        The mean loss, and the number of steps and views.
    """
    model, objective, config = model or client.model, client.objective, client.config
    loss_of = loss or objective_loss(client, model)
    trained = objective.trained(model) if parameters is None else parameters
    optimizer = Optimizer(
        trained,
        config,
        learning_rate(config, client.round, client.rounds),
        scales=rate_scales(model, trained, config.layer_decay),
    )
    order, draws = client.rng(f"{purpose}/order"), client.rng(f"{purpose}/views")
    model.train()
    objective.before_round(model)
    total = torch.zeros((), device=client.device)
    steps = views_made = 0
    epochs = epochs or config.epochs
    planned = count_steps(len(client.images), config.batch_size, epochs)
    with compile_encoders(model) if config.compile else nullcontext():
        chosen = batches(len(client.images), config.batch_size, epochs, order)
        for batch in prepare_batches(client, chosen, draws, client.rng(f"{purpose}/loss")):
            optimizer.lr = learning_rate(config, client.round, client.rounds, steps / planned)
            with autocast(client.device, config.precision):
                value = loss_of(batch)
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            if config.clip:
                nn.utils.clip_grad_norm_(trained, config.clip)
            optimizer.step()
            objective.after_step(model)
            total += value.detach()
            steps += 1
            views_made += len(batch.views) * len(batch.positions)
            client.check_deadline()
    mean = float(total) / steps
    if not math.isfinite(mean):
        raise ClientFailure(f"loss is {mean} after {steps} steps")
    return Training(mean, steps, views_made)


def rate_scales(model: nn.Module, trained: list[nn.Parameter], decay: float) -> list[float] | None:
    """The factor of each parameter's learning rate (`train.layer_decay`); None: all are equal."""
    if decay == 1:
        return None
    scales = depth_scales(model, decay)
    known = {id(parameter): scales[name] for name, parameter in model.named_parameters()}
    return [known.get(id(parameter), 1.0) for parameter in trained]


def prepare_batches(
    client: Client, chosen: Iterable[Tensor], rng: torch.Generator, loss_rng: torch.Generator
) -> Iterator[Batch]:
    """Batches with their views. While a GPU computes, the next ones are prepared in a thread.

    Args:
        client: whose images.
        chosen: positions of the images of each batch.
        rng: for the views.
        loss_rng: for random numbers of the loss; a separate generator, because views are prefetched.
    """
    made = (make_batch(client, positions, rng, loss_rng) for positions in chosen)
    return made if client.device.type == "cpu" else run_ahead(made)


def make_batch(client: Client, positions: Tensor, rng: torch.Generator, loss_rng: torch.Generator) -> Batch:
    """One batch of the client's images at these positions, with new views of them."""
    images, labels = client.images.batch(positions)
    views = client.views(images, rng, client.device)
    images = copy_to(images, client.device)
    return Batch(
        images, views, None if labels is None else copy_to(labels, client.device), loss_rng, positions
    )


def batches(images: int, batch_size: int, epochs: float, rng: torch.Generator) -> Iterator[Tensor]:
    """Positions of full batches, shuffled in every epoch; a fraction of an epoch is a fraction of its steps.

    A client with fewer images than the batch size trains on all of them at once. A single image is repeated
    (with different views), since BatchNorm needs a batch of at least two.
    """
    size = min(batch_size, images)
    per_epoch = images // size
    for step in range(count_steps(images, batch_size, epochs)):
        if step % per_epoch == 0:
            order = torch.randperm(images, generator=rng)
        begin = (step % per_epoch) * size
        positions = order[begin : begin + size]
        yield positions if size > 1 else positions.repeat(2)


def count_steps(images: int, batch_size: int, epochs: float) -> int:
    """The number of batches in `epochs`; at least one."""
    return max(1, round(epochs * (images // min(batch_size, images))))


def learning_rate(config: TrainConfig, round: int, rounds: int, done: float = 0.0) -> float:
    """The learning rate of a step.

    Args:
        config: names the schedule.
        round: number of the round, from 1.
        rounds: number of rounds of the run.
        done: share of the round's local epochs before this step. Only `round_decay` and `step` use it: the
            latter counts local epochs, so that the rate does not depend on how often clients communicate.
    """
    rate = config.lr * (1 - config.round_decay * 0.5 * (1 - math.cos(math.pi * done)))
    if config.schedule == "cosine":
        return rate * 0.5 * (1 + math.cos(math.pi * ((round - 1) / rounds)))
    if config.schedule == "step":
        progress = (round - 1 + done) / rounds + 1e-9  # rounding must not delay a milestone
        passed = sum(progress >= milestone for milestone in config.milestones)
        return rate * config.gamma**passed
    return rate


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Mixed precision for bf16, or for auto on CUDA."""
    if precision == "bf16" or (precision == "auto" and device.type == "cuda"):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()
