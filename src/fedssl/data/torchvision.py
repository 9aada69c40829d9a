"""Data sets that torchvision downloads: below `data.root`, or `$FEDSSL_DATA`, or `~/.cache/fedssl`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedssl.data.cache import Listing
from fedssl.data.files import Files
from fedssl.data.images import ImageSet
from fedssl.errors import ConfigError, DataError, did_you_mean

if TYPE_CHECKING:
    from fedssl.data.options import DataConfig
    from fedssl.progress import Progress

STL10_SPLITS = ("train", "unlabeled", "train+unlabeled")

DIGITS = ("mnist", "usps", "svhn")  # must not be mirrored


def cifar10(config: DataConfig, progress: Progress | None = None) -> tuple[ImageSet, ImageSet]:
    """50,000 and 10,000 color images of 32×32 pixels, 10 classes."""
    return _pair("CIFAR10", config, "cifar-10-batches-py/ as unpacked from cifar-10-python.tar.gz")


def cifar100(config: DataConfig, progress: Progress | None = None) -> tuple[ImageSet, ImageSet]:
    """50,000 and 10,000 color images of 32×32 pixels, 100 classes."""
    return _pair("CIFAR100", config, "cifar-100-python/ as unpacked from cifar-100-python.tar.gz")


def mnist(config: DataConfig, progress: Progress | None = None) -> tuple[ImageSet, ImageSet]:
    """60,000 and 10,000 gray digits of 28×28 pixels."""
    return _pair("MNIST", config, "MNIST/raw/train-images-idx3-ubyte and its three companions")


def fashion_mnist(config: DataConfig, progress: Progress | None = None) -> tuple[ImageSet, ImageSet]:
    """60,000 and 10,000 gray pictures of clothes of 28×28 pixels, 10 classes."""
    return _pair("FashionMNIST", config, "FashionMNIST/raw/train-images-idx3-ubyte and its three companions")


def usps(config: DataConfig, progress: Progress | None = None) -> tuple[ImageSet, ImageSet]:
    """7,291 and 2,007 gray digits of 16×16 pixels."""
    return _pair("USPS", config, "usps.bz2 and usps.t.bz2")


def svhn(config: DataConfig, progress: Progress | None = None) -> tuple[ImageSet, ImageSet]:
    """73,257 and 26,032 house numbers in color, 32×32 pixels, 10 classes."""
    hint = "train_32x32.mat and test_32x32.mat"
    train = _images(_open("SVHN", config, hint, split="train"), "svhn")
    return train, _images(_open("SVHN", config, hint, split="test"), "svhn")


def stl10(config: DataConfig, progress: Progress | None = None) -> tuple[ImageSet, ImageSet]:
    """5,000 (or, with data.split=unlabeled, 100,000) and 8,000 color images of 96×96 pixels."""
    split = config.split or "train"
    if split not in STL10_SPLITS:
        raise ConfigError(f"data.split={split!r}: {did_you_mean(split, STL10_SPLITS)}")
    hint = "stl10_binary/ as unpacked from stl10_binary.tar.gz"
    train = _images(_open("STL10", config, hint, split=split), "stl10", labeled=split == "train")
    return train, _images(_open("STL10", config, hint, split="test"), "stl10")


def celeba(config: DataConfig, progress: Progress | None = None) -> tuple[Listing, Listing]:
    """162,770 and 19,962 faces with 40 attributes: the middle square of each, at data.size (default 64)."""
    place = _root(config) / "celeba"
    pictures, partition = place / "img_align_celeba", place / "list_eval_partition.txt"
    if not pictures.is_dir() or not partition.is_file():
        _open("CelebA", config, "celeba/img_align_celeba/ and celeba/list_eval_partition.txt", split="test")
    table = np.loadtxt(partition, dtype=str, ndmin=2)
    files = Files([pictures / name for name in table[:, 0]], pictures, square=True)
    side = config.size or 64
    whole = Listing(
        files,
        np.arange(len(table)),
        (side, side, config.channels or 3),
        name="celeba",
        attributes=_attributes(place / "list_attr_celeba.txt", list(table[:, 0])),
    )
    return whole.subset(np.flatnonzero(table[:, 1] == "0")), whole.subset(np.flatnonzero(table[:, 1] == "2"))


def celeba_people(config: DataConfig, progress: Progress | None = None) -> tuple[Listing, Listing]:
    """CelebA with 10,177 people as its classes; those of test images are in no training image."""
    splits = celeba(config, progress)
    file = _root(config) / "celeba" / "identity_CelebA.txt"
    if not file.is_file():
        raise DataError(f"celeba-people needs {file}, which names the person in each picture")
    person = {name: int(number) for name, number in map(str.split, file.read_text().splitlines())}
    numbers = sorted(set(person.values()))
    place = {number: index for index, number in enumerate(numbers)}

    def labeled(split: Listing) -> Listing:
        names = [Path(split.source.name(row)).name for row in split.rows.tolist()]
        missing = [name for name in names if name not in person]
        if missing:
            raise DataError(f"{file} has no entry for {missing[0]} and {len(missing) - 1} others")
        y = torch.tensor([place[person[name]] for name in names])
        return replace(split, y=y, classes=tuple(map(str, numbers)), name="celeba-people")

    train, test = map(labeled, splits)
    return train, test


def _attributes(file: Path, pictures: list[str]) -> Tensor | None:
    """Read binary attributes, one row per picture, if the file exists: a count, names, then ±1 values."""
    if not file.is_file():
        return None
    rows = {name: values for name, *values in map(str.split, file.read_text().splitlines()[2:])}
    missing = [name for name in pictures if name not in rows]
    if missing:
        raise DataError(f"{file} has no entry for {missing[0]} and {len(missing) - 1} others")
    return torch.tensor([[value == "1" for value in rows[name]] for name in pictures])


def _pair(kind: str, config: DataConfig, files: str) -> tuple[ImageSet, ImageSet]:
    train = _images(_open(kind, config, files, train=True), config.name)
    return train, _images(_open(kind, config, files, train=False), config.name)


def _root(config: DataConfig) -> Path:
    return Path(config.root or os.environ.get("FEDSSL_DATA") or "~/.cache/fedssl").expanduser()


def _open(kind: str, config: DataConfig, files: str, **split: Any) -> Any:
    """Load torchvision's data set from existing files, or download it."""
    from torchvision import datasets

    root = _root(config)
    build: Callable[..., Any] = getattr(datasets, kind)
    try:
        return build(str(root), download=False, **split)
    except (RuntimeError, OSError):
        pass  # not there, or damaged
    try:
        root.mkdir(parents=True, exist_ok=True)
        return build(str(root), download=True, **split)
    except Exception as error:  # networks, servers, archives and disks fail in many ways
        reason = " ".join(str(error).split())
        raise DataError(
            f"{config.name} is incomplete in {root} and cannot be downloaded ({reason}): put {files} there, "
            "or give your own copy with data.name=npz or data.name=folder and data.root"
        ) from error


def _images(source: Any, name: str, labeled: bool = True) -> ImageSet:
    """Convert torchvision's array to N×H×W×C."""
    x: Tensor = torch.as_tensor(source.data)
    if x.ndim == 3:
        x = x.unsqueeze(3)
    elif x.shape[3] != 3:  # SVHN and STL-10 have the channels first
        x = x.permute(0, 2, 3, 1)
    if not labeled:
        return ImageSet(x, name=name)
    labels = source.labels if hasattr(source, "labels") else source.targets
    y = torch.as_tensor(labels).to(torch.int64)
    return ImageSet(x, y, tuple(getattr(source, "classes", ())), name=name, mirrored=name not in DIGITS)
