"""Example-level differential privacy: a client trains with DP-SGD (Abadi et al. 2016), by Opacus.

In every step each image is drawn with the same probability, its gradient is clipped to `privacy.clip`, and
noise is added to the sum of gradients. The guarantee holds for one image of a client, against anyone who sees
the client's uploads.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedssl.errors import ConfigError
from fedssl.methods.client import Client, ClientFailure
from fedssl.methods.method import Method
from fedssl.methods.optimizers import Optimizer
from fedssl.methods.training import (
    Training,
    learning_rate,
    make_batch,
    objective_loss,
    rate_scales,
)
from fedssl.models.model import Model
from fedssl.models.pointwise import Pointwise
from fedssl.privacy.accountant import Release
from fedssl.privacy.options import PrivacyConfig
from fedssl.privacy.protector import SECRET_FILE, is_secret
from fedssl.privacy.sampling import sampling
from fedssl.privacy.spent import SPENT_FILE, SpentFile
from fedssl.privacy.stream import Stream, derive_key, run_secret

if TYPE_CHECKING:
    from opacus.optimizers import DPOptimizer

    from fedssl.config import Config


class ExampleTrainer:
    """Trains one client in one round, in place of `train_locally`.

    Args:
        privacy: the config section.
        key: the key of the client's sampling and noise in this round, 32 bytes.
        spent: what the client has spent in earlier rounds.
    """

    def __init__(self, privacy: PrivacyConfig, key: bytes, spent: SpentFile) -> None:
        self.privacy, self.key, self.spent = privacy, key, spent

    def train(self, client: Client) -> Training:
        """Train `client.model` on the objective, and nothing else.

        Returns:
            The numbers of steps and views, and ε; no loss, which ε does not cover.

        Raises:
            ClientFailure: if the budget is spent, or δ is too large for so few images.
        """
        if self.privacy.delta * len(client.images) >= 1:
            raise ClientFailure(
                f"privacy.delta={self.privacy.delta:g} is not below 1 ÷ {len(client.images)}, its images"
            )
        release, steps = sampling(
            len(client.images), client.config.batch_size, client.config.epochs, self.privacy.noise
        )
        values = self._spend(client, release, steps)
        client.objective.before_round(client.model)
        with per_image_gradients(client.model, client.objective.trained(client.model)) as trained:
            views = self._train(client, trained, release.rate, steps)
        return Training(0.0, steps, views, values)

    def _spend(self, client: Client, release: Release, steps: int) -> dict[str, float]:
        """Write the round into the client's ledger before it trains; fails if the budget is spent."""
        budget, delta = self.privacy.epsilon, self.privacy.delta
        after = self.spent.before(client.round).after(release, steps)
        epsilon = after.epsilon(delta)
        if budget and epsilon > budget:
            raise ClientFailure(
                f"its privacy budget is spent: this round would make ε = {epsilon:.4g}, and "
                f"privacy.epsilon is {budget:g}"
            )
        self.spent.add(client.round, release, steps)
        values = {"epsilon": epsilon}
        if budget:
            values["epsilon_next"] = after.after(release, steps).epsilon(delta)
        return values

    def _train(self, client: Client, trained: list[nn.Parameter], rate: float, steps: int) -> int:
        model, objective, config = client.model, client.objective, client.config
        loss_of = objective_loss(client)
        optimizer = Optimizer(
            trained,
            config,
            learning_rate(config, client.round, client.rounds),
            scales=rate_scales(model, trained, config.layer_decay),
        )
        private = self._private(trained, min(config.batch_size, len(client.images)))
        chance, draws, views = Stream(derive_key(self.key, "sampling")), client.rng("train/views"), 0
        loss_draws = client.rng("train/loss")
        model.train()
        for step in range(steps):
            optimizer.lr = learning_rate(config, client.round, client.rounds, step / steps)
            (positions,) = (chance.uniform(len(client.images)) <= rate).nonzero()
            private.zero_grad(set_to_none=True)
            if len(positions):
                batch = make_batch(client, torch.from_numpy(positions), draws, loss_draws)
                loss_of(batch).backward()  # type: ignore[no-untyped-call]
                views += len(batch.views) * len(positions)
            else:  # no image was drawn: noise alone
                for parameter in trained:
                    parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))  # type: ignore[attr-defined]
            private.pre_step()
            optimizer.step()
            objective.after_step(model)
            client.check_deadline()
        private.zero_grad(set_to_none=True)
        if not all(bool(parameter.isfinite().all()) for parameter in trained):
            raise ClientFailure("parameters are not finite after training")
        return views

    def _private(self, trained: list[nn.Parameter], expected: int) -> DPOptimizer:
        """Opacus clips and sums gradients, the key gives the noise, and fedssl's optimizer makes the step."""
        noise = Stream(derive_key(self.key, "noise"))
        deviation = self.privacy.noise * self.privacy.clip
        private = _optimizer_class()(
            torch.optim.SGD(trained, lr=1.0),
            noise_multiplier=self.privacy.noise,
            max_grad_norm=self.privacy.clip,
            expected_batch_size=expected,
        )
        private.draw = lambda count: deviation * noise.normal(count)
        return private


def _optimizer_class() -> Any:
    from opacus.optimizers import DPOptimizer

    class KeyedOptimizer(DPOptimizer):  # type: ignore[misc]
        """Opacus's, with noise from AES, because a 32-bit seed of PyTorch can be found by search."""

        draw: Callable[[int], NDArray[np.float64]]

        def add_noise(self) -> None:
            for parameter in self.params:
                summed = parameter.summed_grad
                noise = torch.from_numpy(self.draw(summed.numel())).to(summed.device, summed.dtype)
                parameter.grad = summed + noise.view_as(summed)

    return KeyedOptimizer


def example_trainer(config: Config, folder: Path, client: int, round: int) -> ExampleTrainer:
    """The trainer of one client in one round.

    At a site, a round that is repeated after a server crash may start from another global model. With the
    same noise, the difference of both uploads would contain no noise, so sites draw new noise every time.
    """
    repeats = config.engine.sees_clients or not is_secret(config)
    secret = run_secret(is_secret(config), config.seed, folder.parent / SECRET_FILE)
    key = derive_key(secret, round, "example", client, "" if repeats else os.urandom(16).hex())
    return ExampleTrainer(config.privacy, key, SpentFile(folder / str(client) / SPENT_FILE, repeats))


@contextmanager
def per_image_gradients(model: Model, trained: list[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Context manager in which every backward pass also computes per-image gradients.

    Parameters that belong to a module with submodules (a table of positions, a mask token) are not trained,
    because per-image gradients are computed from the inputs and outputs of layers.

    Yields:
        The parameters that can be trained.
    """
    from opacus.grad_sample.grad_sample_module import GradSampleHooks

    GradSampleHooks.GRAD_SAMPLERS.setdefault(Pointwise, pointwise_gradients)
    fixed = [p for p in composite_parameters(model) if p.requires_grad]
    changed = [module for module in model.modules() if getattr(module, "inplace", False)]
    for parameter in fixed:
        parameter.requires_grad_(False)
    for module in changed:
        module.inplace = False  # type: ignore[assignment]
    hooks = GradSampleHooks(model, strict=False, loss_reduction="mean")
    try:
        with warnings.catch_warnings():
            # Images take no gradients, which PyTorch warns of in the first layer's hook.
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            yield [parameter for parameter in trained if parameter.requires_grad]
    finally:
        hooks.cleanup()
        for parameter in model.parameters():
            for name in ("grad_sample", "summed_grad", "_forward_counter"):
                if hasattr(parameter, name):
                    delattr(parameter, name)
        for parameter in fixed:
            parameter.requires_grad_(True)
        for module in changed:
            module.inplace = True  # type: ignore[assignment]


def pointwise_gradients(layer: Pointwise, activations: list[Tensor], backprops: Tensor) -> dict[Any, Tensor]:
    """Per-image gradients of a strided 1×1 convolution; Opacus only supports plain convolutions."""
    down, across = layer.stride
    seen = activations[0][:, :, ::down, ::across]
    found: dict[Any, Tensor] = {}
    if layer.weight.requires_grad:
        found[layer.weight] = torch.einsum("nohw,nihw->noi", backprops, seen)[..., None, None]
    if layer.bias is not None and layer.bias.requires_grad:
        found[layer.bias] = backprops.sum(dim=(2, 3))
    return found


def composite_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Parameters that belong directly to a module which also has submodules."""
    return [
        parameter
        for module in model.modules()
        if any(True for _ in module.children())
        for parameter in module.parameters(recurse=False)
    ]


def check_training(config: Config) -> None:
    """Raise a ConfigError for methods, objectives and settings that DP-SGD does not support."""
    method, objective, train = config.method, config.objective, config.train
    if objective.couples:
        raise ConfigError(
            f"objective.name={objective.name} {objective.couples}: one image changes the gradients of "
            "others, and the noise of privacy.mode=example would not hide it; use mae, byol or simsiam, or "
            "privacy.mode=client"
        )
    if type(method).train is not Method.train:
        raise ConfigError(
            f"method.name={method.name} does not only minimize the objective (further losses, models or "
            "steps), and the noise of privacy.mode=example only covers the objective; use fedavg, "
            "fedema, fedbn, fedper or fedu, or privacy.mode=client"
        )
    if train.clip:
        raise ConfigError("train.clip clips mean gradients; with privacy.mode=example set privacy.clip")
    if train.compile or train.precision == "bf16":
        key = "train.compile=true" if train.compile else "train.precision=bf16"
        raise ConfigError(f"{key} does not provide per-image gradients, which privacy.mode=example needs")


def check_model(config: Config, model: nn.Module) -> None:
    """Raise a ConfigError if normalization makes images depend on each other."""
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        raise ConfigError(
            f"model.encoder={config.model.encoder} with objective.name={config.objective.name} has BatchNorm "
            "layers, through which one image changes the gradients of others: set model.norm=group"
        )
