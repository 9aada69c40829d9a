"""Estimates the cost of a table on this machine: number of training steps times the time of a step."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedssl.config import Config, flatten
from fedssl.data.options import DataConfig
from fedssl.data.partitions import Pool
from fedssl.data.views import Views
from fedssl.engines.device import find_device
from fedssl.engines.loop import sample_clients
from fedssl.engines.network import build_network
from fedssl.experiment import with_machine_defaults
from fedssl.generative.adapt import Adapt
from fedssl.generative.fid import FID
from fedssl.generative.restyle import ContentTransfer
from fedssl.generative.use import choose_use
from fedssl.methods.optimizers import Optimizer
from fedssl.methods.training import autocast
from fedssl.objectives.generative.adversarial import Adversarial
from fedssl.rng import torch_rng
from fedssl.tables.table import Measure
from fedssl.threads import with_threads

BUDGET = 6.0  # seconds for all measurements together
QUICK = 0.03  # seconds of a step with two images; slower ones are measured with few images

# Number and shape of images, for data sets that are split into training and test images …
SPLIT = {"digits": (1797, (8, 8, 1)), "mnist5k": (5000, (28, 28, 1))}
# … and number of training images of data sets that would have to be downloaded to count them.
KNOWN = {
    "cifar10": (50_000, (32, 32, 3)),
    "cifar100": (50_000, (32, 32, 3)),
    "mnist": (60_000, (28, 28, 1)),
    "fashion-mnist": (60_000, (28, 28, 1)),
    "usps": (7_291, (16, 16, 1)),
    "svhn": (73_257, (32, 32, 3)),
}


@dataclass(frozen=True)
class Images:
    """Number of training images, and their height, width and channels."""

    count: int
    shape: tuple[int, int, int]
    styles: int = 1


@dataclass(frozen=True)
class Plan:
    """The training work of one run."""

    clients: int  # clients per round
    steps: int  # over all clients and rounds


def images(data: DataConfig) -> Images | None:
    """Return the number of images without reading pixels; None if unknown."""
    if "+" in data.name:
        return _joined(data)
    styles = 1
    if data.name == "npz":
        count, shape = _npz_shape(Path(data.root))
        styles = _npz_styles(Path(data.root))
    elif data.name in SPLIT:
        count, shape = SPLIT[data.name]
        count -= round(data.test_fraction * count)
    elif data.name in KNOWN:
        count, shape = KNOWN[data.name]
    else:
        return None
    height, width, depth = shape
    side = data.size
    return Images(data.limit or count, (side or height, side or width, data.channels or depth), styles)


def _joined(data: DataConfig) -> Images | None:
    """Combine several data sets as styles of one (see fedssl.data.styles)."""
    found = []
    for name in data.name.split("+"):
        file = Path(data.root).expanduser() / f"{name}_train.npz"
        source = {"name": "npz", "root": str(file)} if data.root and file.is_file() else {"name": name}
        part = images(data.model_copy(update={"limit": 0, **source}))
        if part is None:
            return None
        found.append(part)
    shape = max(max(part.shape[:2]) for part in found), max(part.shape[2] for part in found)
    return Images(data.limit or sum(part.count for part in found), (shape[0], shape[0], shape[1]), len(found))


def plan(config: Config, count: int, styles: int = 1) -> Plan:
    """Return clients and steps, assuming images are spread evenly."""
    pooled, train = config.method.pools_data, config.train
    each = Pool(styles, None, np.arange(styles))  # one image of every style
    clients = 1 if pooled else config.partition.clients_for(each)
    taking_part = 1 if pooled else config.partition.workers or clients
    selected = len(sample_clients(config.participation, taking_part, config.seed, 1))
    own = max(1, round(count * (1 - config.data.holdout) * config.partition.amount / clients))
    per_epoch = own // min(train.batch_size, own)
    return Plan(selected, config.rounds * selected * max(1, round(train.epochs * per_epoch)))


def evaluation_steps(config: Config, asked: Measure, count: int, styles: int = 1) -> float:
    """Return the number of training steps that take about as long as `fedssl generate` for a cell.

    Adapting trains a new run. Generating and classifying an image is a forward pass, which
    takes about a third of a training step's time for one image. Everything else is small.
    """
    if asked.kind != "generate":
        return 0.0
    use = choose_use(asked.what, dict(flatten(asked.config)))
    batch, planned = config.train.batch_size, plan(config, count, styles)
    if isinstance(use, Adapt):
        new = config.partition.model_copy(update={"clients": use.clients, "workers": 0})
        return plan(config.model_copy(update={"rounds": use.rounds, "partition": new}), count, styles).steps
    if isinstance(use, FID):
        clients = max(planned.clients, config.partition.clients)
        return clients * 2 * min(use.count, max(1, count // clients)) / batch / 3
    if isinstance(use, ContentTransfer):
        return use.steps * use.batch / batch / 3
    return 0.0


@dataclass(frozen=True)
class Pace:
    """Time of a step: a constant (such as the optimizer's) plus a time per image."""

    step: float
    image: float

    def seconds(self, batch: int) -> float:
        return self.step + self.image * batch


class Stopwatch:
    """Measures the pace of each model and objective once; when time is up, it reuses a similar one."""

    def __init__(self, budget: float = BUDGET) -> None:
        self.until = time.monotonic() + budget
        self.known: dict[str, dict[str, Pace]] = {}  # by model, then by objective

    def seconds(self, config: Config, shape: tuple[int, int, int]) -> float:
        """Return the seconds of one step of this config."""
        model = json.dumps([config.model.model_dump(), config.views.model_dump(), config.device, shape])
        like = self.known.setdefault(model, {})
        # A GAN's step includes its share of a generator step, which depends on the method.
        objective = f"{config.objective.model_dump_json()} {generator_share(config)}"
        if objective not in like:
            late = time.monotonic() > self.until
            slowest = max(like.values(), key=lambda pace: pace.image) if late and like else None
            like[objective] = slowest or measure(config, shape)
        return like[objective].seconds(config.train.batch_size)


def measure(config: Config, shape: tuple[int, int, int]) -> Pace:
    """Fit a line through two batch sizes: views, forward, backward and update on random images."""
    # Several workers are at least as fast as one process with all threads.
    with with_threads(with_machine_defaults(config).engine.all_threads):
        step = _Step(config, shape)
        step.seconds(2)  # warm-up
        few = _fastest(step, 2)
        many = 64 if few < QUICK else 8
        image = max(0.0, _fastest(step, many) - few) / (many - 2)
        return Pace(max(0.0, few - 2 * image), image)


def _fastest(step: _Step, batch: int) -> float:
    """Return the fastest of three, or of as many as fit into a second: other load only makes steps slower."""
    best, until = step.seconds(batch), time.monotonic() + 1
    for _ in range(2):
        if time.monotonic() < until:
            best = min(best, step.seconds(batch))
    return best


def generator_share(config: Config) -> float:
    """Return generator steps per discriminator step of a GAN."""
    return 1 / getattr(config.method, "discriminator_steps", 1)


class _Step:
    """One training step of a config on random images."""

    def __init__(self, config: Config, shape: tuple[int, int, int]) -> None:
        self.config, self.shape = config, shape
        self.device = find_device(config.device)
        height, width, depth = shape
        # The initial weights do not affect the time of a step.
        random = config.model_copy(update={"model": config.model.model_copy(update={"init": ""})})
        model = build_network(random, (height, width), depth, 10).model
        self.model = model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model.train()
        objective = config.objective
        self.optimizer = Optimizer(objective.trained(self.model), config.train, config.train.lr)
        self.views = Views(
            config.views.resolve(objective.views),
            (height, width),
            depth,
            config.data.mean,
            config.data.std,
            objective.num_views,
        )
        self.rng = torch_rng(0, "cost")

    def seconds(self, batch: int) -> float:
        objective = self.config.objective
        pixels = torch.randint(0, 256, (batch, *self.shape), dtype=torch.uint8, generator=self.rng)
        labels = torch.zeros(batch, dtype=torch.int64, device=self.device) if objective.needs_labels else None
        began = self._now()
        views = self.views(pixels, self.rng, self.device)
        if isinstance(objective, Adversarial):
            self._descend(lambda: objective.discriminator_loss(self.model, views[0], labels, self.rng))
            judged = self._now()
            self._descend(lambda: objective.generator_loss(self.model, batch, labels, self.rng))
            return judged - began + (self._now() - judged) * generator_share(self.config)
        self._descend(lambda: objective.loss(self.model, views, labels, self.rng))
        objective.after_step(self.model)
        return self._now() - began

    def _descend(self, measure_loss: Callable[[], Tensor]) -> None:
        with autocast(self.device, self.config.train.precision):
            loss = measure_loss()
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def _now(self) -> float:
        self._wait()
        return time.monotonic()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _npz_styles(file: Path) -> int:
    with np.load(file, allow_pickle=False) as archive:
        return len(np.unique(archive["domain"])) if "domain" in archive else 1


def _npz_shape(file: Path) -> tuple[int, tuple[int, int, int]]:
    """Read from the header of `x`, without decompressing the pixels."""
    with zipfile.ZipFile(file) as archive, archive.open("x.npy") as member:
        version = np.lib.format.read_magic(member)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape = read(member)[0]
    count, height, width, *depth = (int(side) for side in shape)
    return count, (height, width, depth[0] if depth else 1)
