"""Detection and instance segmentation: the encoder is fine-tuned end to end as a backbone (Dec-SSL, §3.1)."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fedssl.data.sets import to_channels
from fedssl.errors import ConfigError, DataError, RunError
from fedssl.evaluation.detector import build_detector
from fedssl.evaluation.loaded import LoadedRun
from fedssl.evaluation.protocol import Protocol
from fedssl.evaluation.scene_sets import load
from fedssl.evaluation.scenes import Scene, Scenes
from fedssl.normalization import Levels
from fedssl.progress import bar
from fedssl.rng import derive, torch_rng

if TYPE_CHECKING:
    from fedssl.evaluation.options import DetectionConfig
    from fedssl.progress import Progress

DECAYS = (2 / 3, 8 / 9)  # 60,000 and 80,000 of the 90,000 steps of the 1× schedule
WARM_UP = 1000  # steps at most
MASK_THRESHOLD = 0.5  # probability from which a pixel belongs to a mask

Tensors = dict[str, Tensor]


class Detection(Protocol):
    """Box and mask AP of Mask R-CNN with FPN on the encoder, fine-tuned, and of the same from scratch."""

    def evaluate(self, run: LoadedRun) -> dict[str, Any]:
        options, data = run.config.detection, run.config.data
        train, test = load(options, run.trained.data.root)
        labeled = train.some(max(1, round(options.labels * len(train))), run.config.seed, "labelled")
        tuning = Tuning(
            options, run.federation.train.channels, data.mean, data.std, run.config.seed, run.device
        )
        own = run.models.exported(run.server, run.memory_rounds)
        with bar() as progress:
            # One after the other: the encoders share one module.
            found = fine_tune(own.module, labeled, test, tuning, progress)
            scratch = fine_tune(run.models.untrained(), labeled, test, tuning, progress)
        return {
            "protocol": "detection",
            "model": own.owner,
            "images": f"{train.name}: {len(labeled)} labeled of {len(train)} train, {len(test)} test",
            **found,
            "untrained": {kind: numbers for kind, numbers in scratch.items() if kind != "per_class"},
        }


@dataclass(frozen=True)
class Tuning:
    """How detectors are trained, and how their images are normalized."""

    config: DetectionConfig
    channels: int
    mean: Levels
    std: Levels
    seed: int
    device: torch.device


def fine_tune(
    encoder: nn.Module, labeled: Scenes, test: Scenes, tuning: Tuning, progress: Progress | None = None
) -> dict[str, Any]:
    """Train a detector on a copy of the encoder, and compute its average precision.

    Args:
        encoder: the backbone.
        labeled: training scenes.
        test: test scenes.
        tuning: how to train.
        progress: called with the steps that are done.
    """
    device = tuning.device
    # The heads' weights and the sampled regions come from torch's global generators.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(derive(tuning.seed, "detection"))
        detector = build_detector(
            encoder, labeled, tuning.config, tuning.channels, tuning.mean, tuning.std
        ).to(device)
        train(detector, labeled, tuning, progress)
        predicted = predictions(detector, test, tuning, progress)
        return average_precision(predicted, test)


# --- training -------------------------------------------------------------------------------------


def train(detector: nn.Module, scenes: Scenes, tuning: Tuning, progress: Progress | None = None) -> None:
    """Train the whole detector, with the encoder, for `detection.steps` steps."""
    config, seed, device = tuning.config, tuning.seed, tuning.device
    optimizer = _optimizer(detector, config)
    detector.train()
    for step, places in enumerate(batches(len(scenes), config, seed)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step)
        rng = torch_rng(seed, "detection", "flip", step)
        batch = [flipped(scenes[place], config.flip, rng) for place in places]
        losses: Tensors = detector(
            [to_input(scene, tuning.channels, device) for scene in batch],
            [to_target(scene, device) for scene in batch],
        )
        loss = torch.stack(list(losses.values())).sum()
        if not math.isfinite(value := float(loss.detach())):
            raise RunError(f"detection: loss {value} at step {step + 1}: set a smaller detection.lr")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if config.clip:
            nn.utils.clip_grad_norm_(detector.parameters(), config.clip)
        optimizer.step()
        if progress is not None:
            progress(step + 1, config.steps, "fine-tuning")


def _optimizer(detector: nn.Module, config: DetectionConfig) -> torch.optim.Optimizer:
    parameters = list(detector.parameters())
    if config.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=config.lr, weight_decay=config.weight_decay)
    return torch.optim.SGD(parameters, lr=config.lr, momentum=0.9, weight_decay=config.weight_decay)


def learning_rate(config: DetectionConfig, step: int) -> float:
    """The learning rate of a step, counted from 0: a linear warm-up, then two decays by 10."""
    warm_up = min(WARM_UP, config.steps // 10)
    decayed = sum(step >= share * config.steps for share in DECAYS)
    return config.lr * min(1.0, (step + 1) / (warm_up + 1)) * 0.1**decayed


def batches(count: int, config: DetectionConfig, seed: int) -> Iterator[list[int]]:
    """Positions of `detection.steps` batches; the scenes are reshuffled whenever they are used up."""
    order: list[int] = []
    shuffles = torch_rng(seed, "detection", "order")
    for _ in range(config.steps):
        while len(order) < config.batch_size:
            order += torch.randperm(count, generator=shuffles).tolist()
        yield order[: config.batch_size]
        order = order[config.batch_size :]


def flipped(scene: Scene, chance: float, rng: torch.Generator) -> Scene:
    """Flip a scene horizontally with this probability."""
    if float(torch.rand((), generator=rng)) >= chance:
        return scene
    boxes = scene.boxes.clone()
    boxes[:, [0, 2]] = scene.image.shape[1] - scene.boxes[:, [2, 0]]
    masks = None if scene.masks is None else scene.masks.flip(2)
    return replace(scene, image=scene.image.flip(1), boxes=boxes, masks=masks)


def to_input(scene: Scene, channels: int, device: torch.device) -> Tensor:
    """Convert a scene to pixels in [0, 1] [C, H, W], with the encoder's number of channels."""
    return to_channels(scene.image[None], channels)[0].permute(2, 0, 1).to(device).float() / 255


def to_target(scene: Scene, device: torch.device) -> Tensors:
    """Convert a scene to a target of torchvision's detectors, without crowds."""
    wanted = ~scene.crowd
    target = {"boxes": scene.boxes[wanted], "labels": scene.labels[wanted]}
    if scene.masks is not None:
        target["masks"] = scene.masks[wanted].to(torch.uint8)
    return {name: value.to(device) for name, value in target.items()}


# --- scoring --------------------------------------------------------------------------------------


@torch.inference_mode()
def predictions(
    detector: nn.Module, scenes: Scenes, tuning: Tuning, progress: Progress | None = None
) -> Iterator[Tensors]:
    """Predict boxes, labels and scores of each scene, and masks if the detector has them."""
    detector.eval()
    for place in range(len(scenes)):
        (found,) = detector([to_input(scenes[place], tuning.channels, tuning.device)])
        if "masks" in found:
            found["masks"] = found["masks"][:, 0] >= MASK_THRESHOLD
        yield {name: value.cpu() for name, value in found.items()}
        if progress is not None:
            progress(place + 1, len(scenes), "testing")


def average_precision(predicted: Iterable[Tensors], scenes: Scenes) -> dict[str, Any]:
    """Compute COCO's AP of boxes and, if there are any, masks: over IoU 0.5 … 0.95, at 0.5, and at 0.75."""
    kinds = {"box": "bbox", "mask": "segm"} if scenes.has_masks else {"box": "bbox"}
    metric = _metric(tuple(kinds.values()))
    for place, found in enumerate(predicted):
        scene = scenes[place]
        truth = {"boxes": scene.boxes, "labels": scene.labels, "iscrowd": scene.crowd.long()}
        if scene.masks is not None:
            truth["masks"] = scene.masks
        metric.update([found], [truth])
    numbers = metric.compute()
    if float(numbers[_key(kinds, "box", "map")]) < 0:
        raise DataError(f"{scenes.name}: the {len(scenes)} test images contain no objects to score")
    result: dict[str, Any] = {
        kind: {
            short: float(numbers[_key(kinds, kind, name)])
            for short, name in (("ap", "map"), ("ap50", "map_50"), ("ap75", "map_75"))
        }
        for kind in kinds
    }
    return {**result, "per_class": _per_class(numbers, kinds, scenes.classes)}


def _per_class(numbers: Tensors, kinds: dict[str, str], classes: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each class that occurs."""
    present = numbers["classes"].flatten().tolist()
    columns = {kind: numbers[_key(kinds, kind, "map_per_class")].flatten().tolist() for kind in kinds}
    return [
        {"class": classes[label - 1], **{kind: columns[kind][row] for kind in kinds}}
        for row, label in enumerate(present)
        if columns["box"][row] >= 0
    ]


def _key(kinds: dict[str, str], kind: str, name: str) -> str:
    """The key of a number in torchmetrics' result, which has prefixes for several kinds."""
    return f"{kinds[kind]}_{name}" if len(kinds) > 1 else name


def _metric(kinds: tuple[str, ...]) -> Any:
    try:
        importlib.import_module("pycocotools")
        average = importlib.import_module("torchmetrics.detection").MeanAveragePrecision
    except ImportError as error:
        raise ConfigError(f"detection needs {error.name}: pip install 'fedssl[detection]'") from None
    return average(iou_type=kinds, class_metrics=True)
