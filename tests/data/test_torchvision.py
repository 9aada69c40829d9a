"""Sets that torchvision reads: small files in its own formats, and downloads that fail."""

from __future__ import annotations

import bz2
import pickle
import struct
import urllib.error
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image
from torchvision import datasets

from fedssl.data import sets
from fedssl.data.options import DataConfig
from fedssl.errors import ConfigError, DataError


def load(name: str, root: Path, **keys: Any) -> tuple[Any, Any]:
    return sets.load(DataConfig(name=name, root=str(root), **keys), 0)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Synthetic files pass the check of their contents; nothing is downloaded."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise urllib.error.URLError("no route to host")

    def exists(path: Any, md5: str | None = None) -> bool:
        return Path(path).is_file()

    for module in ("cifar", "svhn", "stl10", "celeba", "mnist", "usps"):
        for name, stand_in in (
            ("check_integrity", exists),
            ("download_url", refuse),
            ("download_and_extract_archive", refuse),
            ("download_file_from_google_drive", refuse),
        ):
            monkeypatch.setattr(f"torchvision.datasets.{module}.{name}", stand_in, raising=False)


def write_cifar(
    folder: Path, files: dict[str, list[int]], key: str, meta: str, meta_key: str
) -> dict[str, np.ndarray]:
    folder.mkdir()
    written = {}
    for seed, (name, labels) in enumerate(files.items()):
        data = noise(len(labels), 3, 32, 32, seed=seed)
        (folder / name).write_bytes(pickle.dumps({"data": data.reshape(len(labels), -1), key: labels}))
        written[name] = data.transpose(0, 2, 3, 1)
    names = [f"class{number}" for number in range(100 if key == "fine_labels" else 10)]
    (folder / meta).write_bytes(pickle.dumps({meta_key: names}))
    return written


def test_cifar10(tmp_path: Path) -> None:
    files = {f"data_batch_{number}": [number, 9] for number in range(1, 6)} | {"test_batch": [3, 4, 5]}
    written = write_cifar(tmp_path / "cifar-10-batches-py", files, "labels", "batches.meta", "label_names")
    train, test = load("cifar10", tmp_path)
    expected = np.concatenate([written[f"data_batch_{number}"] for number in range(1, 6)])
    assert np.array_equal(train.x.numpy(), expected)
    assert np.array_equal(test.x.numpy(), written["test_batch"])
    assert train.y.tolist() == [1, 9, 2, 9, 3, 9, 4, 9, 5, 9]
    assert test.y.tolist() == [3, 4, 5]
    assert train.classes[9] == "class9"


def test_cifar100_takes_the_fine_labels(tmp_path: Path) -> None:
    files = {"train": [0, 99], "test": [50]}
    written = write_cifar(tmp_path / "cifar-100-python", files, "fine_labels", "meta", "fine_label_names")
    train, test = load("cifar100", tmp_path)
    assert np.array_equal(train.x.numpy(), written["train"])
    assert (train.y.tolist(), test.y.tolist(), len(train.classes)) == ([0, 99], [50], 100)


@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion-mnist", "FashionMNIST")])
def test_mnist_files(tmp_path: Path, name: str, folder: str) -> None:
    raw = tmp_path / folder / "raw"
    raw.mkdir(parents=True)
    pixels = {"train": noise(4, 28, 28), "t10k": noise(2, 28, 28, seed=1)}
    for split, x in pixels.items():
        labels = bytes(range(len(x)))
        (raw / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, *x.shape) + x.tobytes())
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, len(x)) + labels)
    train, test = load(name, tmp_path)
    assert np.array_equal(train.x.numpy(), pixels["train"][..., None])
    assert np.array_equal(test.x.numpy(), pixels["t10k"][..., None])
    assert (train.y.tolist(), test.y.tolist(), len(train.classes)) == ([0, 1, 2, 3], [0, 1], 10)


def test_usps(tmp_path: Path) -> None:
    for name, labels in (("usps.bz2", [10, 1]), ("usps.t.bz2", [5])):
        lines = [f"{label} " + " ".join(f"{column}:-1" for column in range(1, 257)) for label in labels]
        lines = [line.replace("1:-1 2:-1", "1:1 2:0") for line in lines]
        (tmp_path / name).write_bytes(bz2.compress("\n".join(lines).encode()))
    train, test = load("usps", tmp_path)
    assert (train.x.shape, test.x.shape) == ((2, 16, 16, 1), (1, 16, 16, 1))
    assert train.x[0, 0, :3, 0].tolist() == [255, 127, 0]
    assert (train.y.tolist(), test.y.tolist()) == ([9, 0], [4])


def test_svhn(tmp_path: Path) -> None:
    x = noise(32, 32, 3, 4)
    for split in ("train", "test"):
        scipy.io.savemat(
            tmp_path / f"{split}_32x32.mat", {"X": x, "y": np.array([[1], [2], [10], [9]], dtype=np.uint8)}
        )
    train, test = load("svhn", tmp_path)
    assert np.array_equal(train.x.numpy(), x.transpose(3, 0, 1, 2))
    assert train.y.tolist() == test.y.tolist() == [1, 2, 0, 9]
    assert train.x.is_contiguous()


@pytest.fixture
def stl10(tmp_path: Path) -> dict[str, np.ndarray]:
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    pixels = {}
    for seed, (split, count) in enumerate({"train": 3, "test": 2, "unlabeled": 5}.items()):
        x = noise(count, 96, 96, 3, seed=seed)
        x.transpose(0, 3, 2, 1).tofile(folder / f"{split}_X.bin")  # planes, column by column
        np.arange(1, count + 1, dtype=np.uint8).tofile(folder / f"{split}_y.bin")
        pixels[split] = x
    (folder / "class_names.txt").write_text("\n".join(f"class{number}" for number in range(10)))
    (folder / "fold_indices.txt").write_text("0 1\n" * 10)
    return pixels


def test_stl10_train_split_is_the_default(tmp_path: Path, stl10: dict[str, np.ndarray]) -> None:
    train, test = load("stl10", tmp_path)
    assert np.array_equal(train.x.numpy(), stl10["train"])
    assert np.array_equal(test.x.numpy(), stl10["test"])
    assert (train.y.tolist(), test.y.tolist(), train.classes[2]) == ([0, 1, 2], [0, 1], "class2")


def test_stl10_unlabeled(tmp_path: Path, stl10: dict[str, np.ndarray]) -> None:
    train, test = load("stl10", tmp_path, split="unlabeled", limit=4)
    assert (train.y, train.classes, len(train)) == (None, (), 4)
    assert all((image == stl10["unlabeled"]).all(axis=(1, 2, 3)).any() for image in train.x.numpy())
    assert test.y.tolist() == [0, 1]
    assert len(load("stl10", tmp_path, split="train+unlabeled")[0]) == 8
    with pytest.raises(ConfigError, match=r"data\.split='unlabelled': did you mean unlabeled"):
        load("stl10", tmp_path, split="unlabelled")


def test_celeba_is_cut_square_and_resized_while_decoding(tmp_path: Path) -> None:
    folder = tmp_path / "celeba" / "img_align_celeba"
    folder.mkdir(parents=True)
    picture = np.zeros((218, 178, 3), dtype=np.uint8)
    picture[20:198] = (200, 100, 50)  # exactly the middle square
    for number in range(4):
        Image.fromarray(picture).save(folder / f"{number:06}.png")
    (folder / "000001.png").unlink()
    partition = "".join(f"{number:06}.png {split}\n" for number, split in enumerate([0, 0, 1, 2]))
    (tmp_path / "celeba" / "list_eval_partition.txt").write_text(partition)
    train, test = load("celeba", tmp_path)
    assert (train.x.shape, test.x.shape, train.y) == ((1, 64, 64, 3), (1, 64, 64, 3), None)
    assert train.x.reshape(-1, 3).unique(dim=0).tolist() == [[200, 100, 50]]
    assert "1 of 2 images left out: 000001.png" in train.warnings[0]
    assert load("celeba", tmp_path, size=32, channels=1)[0].x.shape == (1, 32, 32, 1)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("cifar10", "cifar-10-batches-py/"),
        ("cifar100", "cifar-100-python/"),
        ("mnist", "MNIST/raw/train-images-idx3-ubyte"),
        ("fashion-mnist", "FashionMNIST/raw/train-images-idx3-ubyte"),
        ("usps", "usps.bz2 and usps.t.bz2"),
        ("svhn", "train_32x32.mat"),
        ("stl10", "stl10_binary/"),
        ("celeba", "celeba/img_align_celeba/"),
    ],
)
def test_a_failed_download_names_the_files_to_provide(tmp_path: Path, name: str, files: str) -> None:
    with pytest.raises(DataError) as caught:
        load(name, tmp_path / "here")
    for part in (name, str(tmp_path / "here"), files, "data.name=npz", "data.name=folder"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)  # torchvision's own text for MNIST has several lines


def test_download_goes_to_the_default_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []

    class Fake:
        data = torch.zeros(20, 4, 4, dtype=torch.uint8)
        targets = torch.zeros(20)

        def __init__(self, root: str, train: bool, download: bool) -> None:
            asked.append((root, download))
            if not download:
                raise RuntimeError("not found")

    monkeypatch.setattr(datasets, "MNIST", Fake)
    monkeypatch.setenv("FEDSSL_DATA", str(tmp_path / "data"))
    sets.load(DataConfig(name="mnist"), 0)
    assert asked == [(str(tmp_path / "data"), False), (str(tmp_path / "data"), True)] * 2
    monkeypatch.delenv("FEDSSL_DATA")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    sets.load(DataConfig(name="mnist"), 0)
    assert asked[-1] == (str(tmp_path / "home" / ".cache" / "fedssl"), True)


def test_people_of_celeba_are_classes(tmp_path: Path) -> None:
    folder = tmp_path / "celeba" / "img_align_celeba"
    folder.mkdir(parents=True)
    for number in range(3):
        Image.new("RGB", (178, 218)).save(folder / f"{number:06}.png")
    (tmp_path / "celeba" / "list_eval_partition.txt").write_text("000000.png 0\n000001.png 0\n000002.png 2\n")
    with pytest.raises(DataError, match=r"identity_CelebA\.txt, which names the person"):
        load("celeba-people", tmp_path)
    identities = tmp_path / "celeba" / "identity_CelebA.txt"
    identities.write_text("000002.png 30\n000000.png 70\n000001.png 9\n")
    train, test = load("celeba-people", tmp_path)
    assert (train.y.tolist(), test.y.tolist()) == ([2, 0], [1])
    assert train.classes == ("9", "30", "70")
    identities.write_text("000002.png 30\n000000.png 70\n")
    with pytest.raises(DataError, match=r"has no entry for 000001\.png"):
        load("celeba-people", tmp_path)


def test_celeba_has_attributes(tmp_path: Path) -> None:
    folder = tmp_path / "celeba" / "img_align_celeba"
    folder.mkdir(parents=True)
    for number in range(3):
        Image.new("RGB", (178, 218)).save(folder / f"{number:06}.png")
    (tmp_path / "celeba" / "list_eval_partition.txt").write_text("000000.png 0\n000001.png 0\n000002.png 2\n")
    rows = "000002.png  1 -1\n000000.png -1  1\n000001.png  1  1\n"
    (tmp_path / "celeba" / "list_attr_celeba.txt").write_text(f"3\nBald Smiling\n{rows}")
    train, test = load("celeba", tmp_path)
    assert train.attributes.tolist() == [[False, True], [True, True]]
    assert test.attributes.tolist() == [[True, False]]
    (tmp_path / "celeba" / "list_attr_celeba.txt").write_text("3\nBald Smiling\n000000.png -1  1\n")
    with pytest.raises(DataError, match=r"has no entry for 000001\.png and 1 others"):
        load("celeba", tmp_path)
