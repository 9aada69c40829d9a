"""Train and evaluate a classifier from few labels on top of a trained encoder."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedssl.data import sets
from fedssl.data.images import ImageSet
from fedssl.data.options import DataConfig
from fedssl.data.view_recipes import build_recipe
from fedssl.data.views import Views
from fedssl.errors import ConfigError, DataError
from fedssl.evaluation.features import extract
from fedssl.evaluation.linear import fit
from fedssl.evaluation.scores import Scores, score
from fedssl.evaluation.semi import batches
from fedssl.models.describe import rebuild
from fedssl.models.pointwise import replace_narrow_strides
from fedssl.normalization import shortest
from fedssl.rng import derive, torch_rng
from fedssl.use.classifier import on_top, save_classifier
from fedssl.use.trained import Trained, load_trained

if TYPE_CHECKING:
    from fedssl.progress import Progress

How = Literal["linear", "full"]


@dataclass(frozen=True)
class Tuned:
    """A fine-tuned classifier, with scores and predicted probabilities on held-out images."""

    folder: Path
    classes: tuple[str, ...]
    labelled: int
    test: ImageSet
    probabilities: Tensor  # [test, classes]
    scores: Scores
    untrained: Scores  # the same classifier on the untrained encoder

    @property
    def confusion(self) -> Tensor:
        """The number of images of class i that were classified as class j."""
        assert self.test.y is not None
        number = len(self.classes)
        return torch.bincount(
            self.test.y * number + self.probabilities.argmax(dim=1), minlength=number**2
        ).view(number, number)


def finetune(
    run: str | Path,
    folder: str | Path,
    out: str | Path,
    *,
    labels: int = 0,
    how: How = "linear",
    epochs: int = 30,
    lr: float = 1e-4,
    seed: int = 0,
    device: str = "auto",
    progress: Progress | None = None,
) -> Tuned:
    """Train on `labels` images of each class (0: all) of a folder `class/image`; test on the others.

    `linear` fits logistic regression on the frozen encoder, which is hard to beat with few labels. `full`
    continues from there and trains all layers, with frozen BatchNorm statistics.
    """
    trained = load_trained(run, device)
    train, test = _images(trained, folder, seed, progress)
    chosen = train.subset(_per_class(train, labels, seed)) if labels else train
    encoder = trained.network.network
    network = _linear(encoder, chosen, trained, progress)
    if how == "full":
        _train(network, chosen, trained, epochs, lr, seed, progress)
    logits = _outputs(network, test, trained)
    untrained = _outputs(_linear(_fresh(trained, seed), chosen, trained, progress), test, trained)
    assert test.y is not None
    tuned = Tuned(
        Path(out),
        train.classes,
        len(chosen),
        test,
        logits.softmax(dim=1),
        score(logits.argmax(dim=1), test.y, train.classes),
        score(untrained.argmax(dim=1), test.y, train.classes),
    )
    description = trained.description | {
        "classes": list(train.classes),
        "run": str(Path(run).resolve()),
        "how": how,
        "labelled": len(chosen),
        "scores": {
            "accuracy": tuned.scores.accuracy,
            "macro_f1": tuned.scores.macro_f1,
            "images": len(test),
            "encoder_untrained": tuned.untrained.accuracy,
            "per_class": tuned.scores.per_class,
            "confusion": tuned.confusion.tolist(),
        },
    }
    save_classifier(tuned.folder, network.cpu(), description)
    return tuned


def _images(
    trained: Trained, folder: str | Path, seed: int, progress: Progress | None
) -> tuple[ImageSet, ImageSet]:
    height, width, channels = trained.shape
    if height != width:
        raise ConfigError(f"the encoder takes images of {height}×{width}: only square ones can be fine-tuned")
    data = DataConfig(
        name="folder",
        root=str(folder),
        size=height,
        channels=channels,
        resize="crop" if trained.square else "squash",
        window=trained.window,
    )
    train, test = sets.load(data, seed, progress)
    if train.y is None or test is None:
        raise DataError(f"{folder} has no labels: put the images of each class into a separate folder")
    if len(train.classes) < 2:
        raise DataError(f"{folder} has one class ({train.classes[0]}): a classifier needs at least two")
    return train, test


def _per_class(train: ImageSet, labels: int, seed: int) -> Tensor:
    """Return sorted positions of `count` images of each class, or of all images of a smaller class."""
    assert train.y is not None
    chosen = []
    for label in range(len(train.classes)):
        members = (train.y == label).nonzero().squeeze(1)
        order = torch.randperm(len(members), generator=torch_rng(seed, "finetune", "labels", label))
        chosen.append(members[order[:labels]])
    return torch.cat(chosen).sort().values


def _linear(
    encoder: nn.Module, images: ImageSet, trained: Trained, progress: Progress | None
) -> nn.Sequential:
    assert images.y is not None
    x = _outputs(encoder, images, trained, progress)
    probe = fit(x, images.y, len(images.classes))
    return on_top(copy.deepcopy(encoder), probe.weight, probe.bias.clamp_min(-1e4)).to(trained.device).eval()


def _train(
    network: nn.Module,
    images: ImageSet,
    trained: Trained,
    epochs: int,
    lr: float,
    seed: int,
    progress: Progress | None,
) -> None:
    given = trained.description["input"]
    mean, std = shortest(tuple(given["mean"])), shortest(tuple(given["std"]))
    views = Views.of(images, build_recipe("supervised"), "supervised", mean, std, num_views=1)
    assert images.y is not None
    network.requires_grad_(True)
    replace_narrow_strides(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=lr)
    for epoch in range(epochs):
        rng = torch_rng(seed, "finetune", epoch)
        for index in batches(len(images), 32, rng):
            (view,) = views(images.x[index], rng, trained.device)
            loss = F.cross_entropy(network(view), images.y[index].to(trained.device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if progress is not None:
            progress(epoch + 1, epochs, "fine-tuning")
    network.requires_grad_(False)


def _fresh(trained: Trained, seed: int) -> nn.Module:
    """Return the encoder with its initial weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "finetune", "untrained"))
        return rebuild(trained.description).to(trained.device).eval()


def _outputs(
    network: nn.Module, images: ImageSet, trained: Trained, progress: Progress | None = None
) -> Tensor:
    given = trained.description["input"]
    mean, std = shortest(tuple(given["mean"])), shortest(tuple(given["std"]))
    return extract(network, images, mean=mean, std=std, device=trained.device, progress=progress)
