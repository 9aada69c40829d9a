"""Gradient inversion: reconstructs images of a client from its upload.

The attacker knows the model that the client received and looks for views whose gradient points in the same
direction as the observed one (Geiping et al. 2020). The client makes a single step on few images, the easiest
case for the attacker. The same images are attacked as three observers see them:

    upload     the update in clear
    sum        the sum over the clients of a round: what secure aggregation shows
    noise      the update, bounded and with the noise of client-level differential privacy
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedssl.data.views import plain
from fedssl.engines.tasks import Task
from fedssl.evaluation.loaded import LoadedRun
from fedssl.methods.client import Client
from fedssl.methods.training import Batch, make_batch, objective_loss
from fedssl.normalization import by_channel
from fedssl.privacy.update import clipped
from fedssl.rng import torch_rng
from fedssl.state import snapshot

MOST_SUMMED = 10  # clients whose updates are added up
ROUGH = 1e-3  # weight of the penalty on differences between neighboring pixels
RATE = 0.1
NOISE = 1.0  # noise multiplier of a run that has none


@dataclass(frozen=True)
class Observed:
    """What an observer sees of an update.

    Attributes:
        name: `upload`, `sum` or `noise`.
        gradient: the direction of the update.
        about: how it was computed, as numbers for the report.
    """

    name: str
    gradient: Tensor
    about: dict[str, float]


@dataclass(frozen=True)
class Inversion:
    """What the attack found.

    Attributes:
        numbers: by observer, how similar the rebuilt views are to the true ones; or `why_not`.
        pixels: the true views and those that were rebuilt, uint8 [N, H, W, C], by observer.
    """

    numbers: dict[str, Any]
    pixels: dict[str, NDArray[np.uint8]] = field(default_factory=dict)


def audit_inversion(run: LoadedRun, images: int, steps: int) -> Inversion:
    """Rebuild the images of one client from the update of one step.

    Args:
        run: the run; its first model is attacked, with its objective and its clients' images.
        images: in the client's batch.
        steps: of the attack.
    """
    sizes = [len(part) for part in run.federation.parts]
    if not len(run.federation.train) or max(sizes, default=0) < images:
        return Inversion({"why_not": f"No client on this machine has {images} images."})
    if run.live.runner.boundary.frozen or not run.trained.engine.has_server:
        return Inversion({"why_not": "The attack is for uploads of whole models to a server."})
    clients = [client for client, size in enumerate(sizes) if size >= images][:MOST_SUMMED]
    keep = snapshot(run.live.runner.model)
    try:
        return _attack(run, clients, images, steps)
    finally:
        run.live.runner.model.load_state_dict(keep)


def _attack(run: LoadedRun, clients: Sequence[int], images: int, steps: int) -> Inversion:
    receivers = [_receive(run, client) for client in clients]
    batches = [_batch(client, images) for client in receivers]
    target, truth = receivers[0], batches[0]
    gradients = [
        gradient_of(client, batch, seed=run.trained.seed).detach()
        for client, batch in zip(receivers, batches, strict=True)
    ]
    pixels, observers = {"truth": _pixels(run, torch.cat(truth.views))}, []
    for seen in observations(gradients, target.config.lr, run):
        rebuilt = rebuild(target, truth, seen.gradient, steps, run.trained.seed)
        similarity, matched = matched_views(truth.views, rebuilt)
        pixels[seen.name] = _pixels(run, matched)
        observers.append({"name": seen.name, **seen.about, "similarity": similarity})
    mean = _mean_image(run, truth)
    guess, _ = matched_views(truth.views, [mean.expand_as(view) for view in truth.views])
    return Inversion({"images": images, "steps": steps, "guess": guess, "observers": observers}, pixels)


def _receive(run: LoadedRun, client: int) -> Client:
    """A client that has received the first model of the run."""
    runner, method = run.live.runner, run.trained.method
    broadcast = method.broadcast(runner.first_server(), client, 1)
    runner.receive(Task(1, client, broadcast))
    return runner.client(Task(1, client, broadcast))


def _batch(client: Client, images: int) -> Batch:
    positions = torch.arange(images) if images > 1 else torch.zeros(2, dtype=torch.long)
    return make_batch(client, positions, client.rng("audit/views"), client.rng("audit/loss"))


def gradient_of(client: Client, batch: Batch, seed: int, graph: bool = False) -> Tensor:
    """The gradient of the client's objective on a batch, as one vector."""
    client.model.train()
    batch = Batch(batch.images, batch.views, batch.labels, torch_rng(seed, "audit", "loss"), batch.positions)
    parameters = client.objective.trained(client.model)
    gradients = torch.autograd.grad(
        objective_loss(client)(batch), parameters, create_graph=graph, allow_unused=True
    )
    return torch.cat(
        [
            (torch.zeros_like(parameter) if gradient is None else gradient).reshape(-1)
            for parameter, gradient in zip(parameters, gradients, strict=True)
        ]
    )


def observations(gradients: Sequence[Tensor], lr: float, run: LoadedRun) -> list[Observed]:
    """The first client's update as different observers see it."""
    privacy = run.trained.privacy
    noise = privacy.noise if privacy.by_client else NOISE
    update = (-lr * gradients[0]).double().cpu().numpy()
    bounded = torch.from_numpy(clipped(update, privacy.clip))
    drawn = torch.randn(bounded.shape, generator=torch_rng(run.trained.seed, "audit", "noise")).double()
    noisy = -(bounded + noise * privacy.clip * drawn).to(gradients[0])
    summed = torch.stack(list(gradients)).sum(0)
    return [
        Observed("upload", gradients[0], {}),
        Observed("sum", summed, {"clients": len(gradients)}),
        Observed("noise", noisy, {"noise": noise, "clip": privacy.clip}),
    ]


def rebuild(client: Client, truth: Batch, observed: Tensor, steps: int, seed: int) -> list[Tensor]:
    """Views whose gradient has the direction of the observed one.

    Args:
        client: a client that has received the model.
        truth: the batch that was trained on; its labels and positions are assumed to be known.
        observed: the direction of the gradient.
        steps: of the search.
        seed: of the starting point.
    """
    rng = torch_rng(seed, "audit", "start")
    guess = [
        torch.randn(view.shape, generator=rng).to(view).mul_(0.1).requires_grad_(True) for view in truth.views
    ]
    sizes = [parameter.numel() for parameter in client.objective.trained(client.model)]
    optimizer = torch.optim.Adam(guess, lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        batch = Batch(truth.images, guess, truth.labels, truth.rng, truth.positions)
        found = gradient_of(client, batch, seed, graph=True)
        loss = angles(found, observed, sizes) + ROUGH * sum(
            (roughness(view) for view in guess), start=torch.zeros(())
        )
        gradients = torch.autograd.grad(loss, guess)
        for view, gradient in zip(guess, gradients, strict=True):
            view.grad = gradient.sign()
        optimizer.step()
        schedule.step()
    return [view.detach() for view in guess]


def angles(first: Tensor, second: Tensor, sizes: Sequence[int]) -> Tensor:
    """Mean over tensors of 1 − cosine: large layers must not outweigh those that see pixels."""
    pairs = zip(torch.split(first, list(sizes)), torch.split(second, list(sizes)), strict=True)
    return torch.stack(
        [1 - nn.functional.cosine_similarity(one, other, dim=0) for one, other in pairs]
    ).mean()


def roughness(images: Tensor) -> Tensor:
    """Mean absolute difference between neighboring pixels."""
    down = (images[:, :, 1:] - images[:, :, :-1]).abs().mean()
    return down + (images[:, :, :, 1:] - images[:, :, :, :-1]).abs().mean()


# --- how good it is -------------------------------------------------------------------------------


def matched_views(true: Sequence[Tensor], rebuilt: Sequence[Tensor]) -> tuple[float, Tensor]:
    """For each true view the rebuilt one that is most similar, and the mean of these similarities."""
    found = torch.cat(list(rebuilt))
    similarity = correlations(torch.cat(list(true)), found)
    return float(similarity.amax(1).mean()), found[similarity.argmax(1)]


def correlations(first: Tensor, second: Tensor) -> Tensor:
    """Pearson's correlation over the pixels of each pair of images, [N, M]."""
    flat = [images.flatten(1) - images.flatten(1).mean(1, keepdim=True) for images in (first, second)]
    unit = [nn.functional.normalize(each, dim=1) for each in flat]
    return unit[0] @ unit[1].T


def _mean_image(run: LoadedRun, truth: Batch) -> Tensor:
    """A baseline without the upload: the mean of the test images, or of the training images."""
    images, data = run.federation.test or run.federation.train, run.trained.data
    x = plain(images.x[:1000], data.mean, data.std)
    return x.mean(0, keepdim=True).to(truth.views[0])


def _pixels(run: LoadedRun, views: Tensor) -> NDArray[np.uint8]:
    """Images [N, H, W, C] as they look."""
    data, x = run.trained.data, views.cpu()
    shown = (x * by_channel(data.std, x) + by_channel(data.mean, x)).clamp(0, 1)
    found: NDArray[np.uint8] = shown.mul(255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()
    return found
