"""Recomputes BatchNorm statistics for an encoder with weights that the server rule has scaled.

The running statistics of a global model are means over the clients' training. After L-DAWA has
scaled the weights, they do not match the activations. Clients therefore measure them again on augmented views
of their own images, and only means and variances are sent, so this also works for private data.

Statistics of a layer depend on those of the layers before it. In the first pass every client normalizes by
the batch, as in training, which ignores differences between clients. In the other passes all
normalize by the statistics pooled so far, and each pass makes one more layer of the network exact.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedssl.aggregation.fedavg import FedAvg
from fedssl.aggregation.pooling import MEAN, VARIANCE, pairs
from fedssl.engines.check import problem_with
from fedssl.engines.tasks import Outcome, Task
from fedssl.errors import RunError
from fedssl.methods.client import Client
from fedssl.state import Broadcast, State, Upload
from fedssl.tensorfile import load_tensors, save_tensors

if TYPE_CHECKING:
    from fedssl.config import Config
    from fedssl.engines.runner import ClientRunner

PASSES = 3
IMAGES = 1024  # of all clients
MIN_IMAGES = 32  # per client
CHUNK = 256

Ask = Callable[[Sequence[Task]], Iterable[Outcome]]


def recalibrates(config: Config) -> bool:
    """Whether probes use recalibrated statistics: `probe.recalibrate`, by default if weights are scaled.

    Never with private uploads: the statistics would not be protected by noise or masks.
    """
    asked, private = config.probe.recalibrate, config.privacy.on or config.privacy.by_example
    return (config.aggregation.scales_weights and not private) if asked is None else asked


def pooling(config: Config) -> FedAvg:
    """The rule that pools the clients' means and variances; on the client side if configured."""
    return FedAvg(statistics="pooled", client_side=getattr(config.aggregation, "client_side", False))


def statistics_of(shared: Iterable[str]) -> list[str]:
    """Names of the encoder's means and variances among shared tensors."""
    encoder = sorted(name for name in shared if name.startswith("encoder."))
    return [name for pair in pairs(encoder) for name in pair]


# --- at a client ----------------------------------------------------------------------------------


def some_views(client: Client, clients: int) -> Iterator[Tensor]:
    """Views of some of the client's images, as in training; every call gives the same ones."""
    rng = client.rng("recalibrate")
    count = min(len(client.images), max(MIN_IMAGES, IMAGES // clients))
    chosen = torch.randperm(len(client.images), generator=rng)[:count]
    for positions in torch.split(chosen if count > 1 else chosen.repeat(2), CHUNK):
        images, _ = client.images.batch(positions)
        yield torch.cat(client.views(images, rng, client.device))


@torch.no_grad()
def measure(encoder: nn.Module, batches: Iterable[Tensor], by_batch: bool) -> State:
    """Measure mean and variance of the inputs of each normalization layer with running statistics.

    Args:
        encoder: the encoder; its tensors are restored.
        batches: images [B, C, H, W].
        by_batch: whether layers normalize by the batch, and not by their running statistics.

    Returns:
        The statistics by name, variances without Bessel's correction.
    """
    layers = {
        path: module
        for path, module in encoder.named_modules()
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.running_mean is not None
    }
    seen = {path: Moments() for path in layers}
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    modes = {module: module.training for module in encoder.modules()}

    def watch(path: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _, inputs: seen[path].add(inputs[0])

    hooks = [module.register_forward_pre_hook(watch(path)) for path, module in layers.items()]
    try:
        encoder.eval()
        for module in layers.values():
            module.train(by_batch)
        for images in batches:
            encoder(images)
    finally:
        for hook in hooks:
            hook.remove()
        for part, mode in modes.items():
            part.training = mode
        encoder.load_state_dict(before)
    found: State = {}
    for path, moments in seen.items():
        mean, variance = moments.statistics()
        prefix = f"{path}." if path else ""
        found |= {prefix + MEAN: mean.float(), prefix + VARIANCE: variance.float()}
    return found


@dataclass
class Moments:
    """Sums over images and positions, for each channel, in double precision."""

    count: int = 0
    total: Tensor = field(default_factory=lambda: torch.zeros(()))
    square: Tensor = field(default_factory=lambda: torch.zeros(()))

    def add(self, values: Tensor) -> None:
        wide = values.detach().double().transpose(0, 1).flatten(1)
        self.count += wide.shape[1]
        self.total = self.total + wide.sum(1)
        self.square = self.square + wide.square().sum(1)

    def statistics(self) -> tuple[Tensor, Tensor]:
        mean = self.total / max(self.count, 1)
        return mean.cpu(), (self.square / max(self.count, 1) - mean.square()).clamp(min=0).cpu()


# --- at the server --------------------------------------------------------------------------------


class Recalibration:
    """Statistics of global models, pooled over the clients.

    Args:
        runner: has the model and the names of its statistics.
        ask: runs tasks at the clients.
        file: where to store the statistics, if clients are only connected during training.
    """

    def __init__(self, runner: ClientRunner, ask: Ask, file: Path | None = None) -> None:
        self.runner, self.ask, self.file = runner, ask, file
        self._model: State = {}
        self._found: State = {}

    def of(self, model: State) -> State:
        """Return the encoder's statistics by name, which replace those of `model`."""
        if model is not self._model:
            self._found = self._stored(model)
            if not self._found and self.runner.recalibrated:
                self._found = self.measured(model)
                if self.file is not None and self._found:
                    save_tensors(self.file, self._found, {"model": digest(model)})
            self._model = model
        return self._found

    def measured(self, model: State, passes: int = PASSES) -> State:
        """Ask all clients, in several passes."""
        found: State = {}
        for number in range(passes):
            current = {**model, **found}
            uploads = self._uploads(current, by_batch=number == 0)
            if not uploads:
                return {}
            names = self.runner.recalibrated
            found = pooling(self.runner.config)(
                {name: current[name] for name in names}, uploads, frozenset(names)
            )
        return found

    def _uploads(self, model: State, by_batch: bool) -> list[Upload]:
        config = self.runner.config
        tasks = [
            Task(
                config.rounds + 1,
                client,
                Broadcast(model),
                threads=config.engine.threads,
                measure="by-batch" if by_batch else "by-statistics",
            )
            for client in range(self.runner.federation.clients)
        ]
        expected = {name: self.runner.initial[name] for name in self.runner.recalibrated}
        uploads, failures = [], []
        for outcome in self.ask(tasks):
            upload = outcome.upload
            problem = outcome.failure or (problem_with(upload, expected) if upload else "no answer")
            if upload is None or problem:
                failures.append(f"client {outcome.client}: {problem}")
            else:
                uploads.append(upload)
        if failures:
            kept = "" if uploads else "; the averaged ones are kept"
            warnings.warn(
                f"statistics are recalibrated without {len(failures)} clients ({failures[0]}){kept}",
                stacklevel=2,
            )
        return uploads

    def _stored(self, model: State) -> State:
        if self.file is None or not self.file.exists():
            return {}
        found, about = load_tensors(self.file)
        return found if about["model"] == digest(model) else {}


def stored_at(checkpoints: Path) -> Path:
    """The file in which a server of sites stores the last statistics."""
    return checkpoints / "recalibrated.safetensors"


def out_of_reach(tasks: Sequence[Task]) -> Iterable[Outcome]:
    """Raise a RunError, since the clients are not connected."""
    raise RunError(
        "the clients of this run are at their sites, so its statistics cannot be measured now: train with "
        "probe.recalibrate=true, or evaluate with probe.recalibrate=false"
    )


def digest(model: State) -> str:
    """A fingerprint of a model's tensors."""
    made = hashlib.blake2b(digest_size=16)
    for name in sorted(model):
        made.update(name.encode() + model[name].detach().cpu().contiguous().numpy().tobytes())
    return made.hexdigest()
