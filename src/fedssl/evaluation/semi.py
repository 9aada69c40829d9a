"""Semi-supervised evaluation: fine-tuning of the whole model on a few labeled images."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.data.images import ImageSet
from fedssl.data.views import plain
from fedssl.errors import ConfigError, DataError
from fedssl.evaluation.features import check_features, extract
from fedssl.evaluation.scores import Scores, score
from fedssl.models.heads import mlp
from fedssl.normalization import Levels
from fedssl.rng import derive, torch_rng

if TYPE_CHECKING:
    from fedssl.progress import Progress

Augment = Callable[[Tensor, torch.Generator], Tensor]  # makes one normalized view of each uint8 image


def fine_tune(
    encoder: nn.Module,
    features: int,
    labeled: ImageSet,
    test: ImageSet,
    *,
    hidden: int = 512,
    epochs: int = 100,
    batch_size: int = 128,
    lr: float = 1e-3,
    augment: Augment | None,
    mean: Levels,
    std: Levels,
    seed: int,
    device: torch.device,
    progress: Progress | None = None,
) -> Scores:
    """Fine-tune a copy of the encoder with a new two-layer head on `labeled`; returns scores on `test`.

    FedEMA, section 5.2: 100 epochs, batch 128, Adam 1e-3; the last epoch is reported.
    """
    classes = labeled.classes or test.classes
    if labeled.y is None or test.y is None:
        bare = labeled if labeled.y is None else test
        raise DataError(f"fine-tuning needs labels, and {bare.name or 'one set'} has none")
    if len(labeled) < 2 or batch_size < 2:
        raise ConfigError(
            f"{len(labeled)} labeled images with batch size {batch_size}: "
            "BatchNorm needs at least 2 of each; label more images"
        )
    highest = max(int(labeled.y.max()), int(test.y.max()))
    if highest >= len(classes):
        raise DataError(f"label {highest} needs {highest + 1} class names, but there are {len(classes)}")
    # The head's weights and the encoder's random layers (dropout) use torch's global generators.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(derive(seed, "semi", "weights"))
        head = mlp(features, hidden, len(classes))
        model = nn.Sequential(copy.deepcopy(encoder), head).requires_grad_(True)
        model.to(device).to(memory_format=torch.channels_last).train()
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        for epoch in range(epochs):
            rng = torch_rng(seed, "semi", epoch)
            for index in batches(len(labeled), batch_size, rng):
                images = labeled.x[index]
                views = plain(images, mean, std) if augment is None else augment(images, rng)
                loss = F.cross_entropy(model(views.to(device)), labeled.y[index].to(device))
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            if progress is not None:
                progress(epoch + 1, epochs, "fine-tuning")
        logits = extract(model, test, mean=mean, std=std, device=device)
    check_features(logits)
    return score(logits.argmax(dim=1), test.y, classes)


def batches(count: int, batch_size: int, rng: torch.Generator) -> list[Tensor]:
    """Shuffle and split into batches; a single last image joins the batch before it."""
    parts = list(torch.split(torch.randperm(count, generator=rng), batch_size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts
