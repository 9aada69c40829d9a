"""Data sets of the `datasets` package, saved to disk."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedssl.data import sets
from fedssl.data.options import DataConfig
from fedssl.errors import DataError

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSSL_CACHE", str(tmp_path / "cache"))


def png(seed: int, size: int = 8) -> bytes:
    data = io.BytesIO()
    pixels(seed, size).save(data, "png")
    return data.getvalue()


def pixels(seed: int, size: int = 8) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8))


def table(seeds: list[int], column: str = "img", **more: Any) -> Any:
    """Rows of images; `name=(values, feature)` adds a column."""
    features = {column: datasets.Image()} | {name: feature for name, (_, feature) in more.items()}
    rows = {column: [{"bytes": png(seed), "path": None} for seed in seeds]}
    rows |= {name: values for name, (values, _) in more.items()}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features))


def load(root: Path, **keys: Any) -> tuple[Any, Any]:
    return sets.load(DataConfig(name="huggingface", root=str(root), **keys), 0)


def animals(values: list[int]) -> tuple[list[int], Any]:
    return values, datasets.ClassLabel(names=["cat", "dog", "eel"])


def test_splits_classes_and_pixels(tmp_path: Path) -> None:
    saved = {
        "train": table([0, 1, 2], kind=animals([2, 0, 1])),
        "validation": table([7], kind=animals([0])),
        "test": table([5, 6], kind=animals([1, 1])),
    }
    datasets.DatasetDict(saved).save_to_disk(tmp_path / "set")
    train, test = load(tmp_path / "set")
    assert np.array_equal(train.x.numpy(), np.stack([np.asarray(pixels(seed)) for seed in (0, 1, 2)]))
    assert np.array_equal(test.x.numpy(), np.stack([np.asarray(pixels(seed)) for seed in (5, 6)]))
    assert (train.y.tolist(), test.y.tolist()) == ([2, 0, 1], [1, 1])
    assert train.classes == test.classes == ("cat", "dog", "eel")
    named_train, named_test = load(tmp_path / "set", split="test/validation")
    assert (len(named_train), len(named_test)) == (2, 1)
    assert np.array_equal(named_test.x[0].numpy(), np.asarray(pixels(7)))


def test_one_split_alone_is_split_by_class(tmp_path: Path) -> None:
    table(list(range(10)), label=([0, 1] * 5, datasets.Value("int32"))).save_to_disk(tmp_path / "set")
    train, test = load(tmp_path / "set")
    assert (len(train), len(test), train.classes) == (8, 2, ("0", "1"))


def test_a_column_named_label_takes_precedence(tmp_path: Path) -> None:
    coarse = ([0, 0, 0], datasets.ClassLabel(names=["thing"]))
    table([0, 1, 2], coarse_label=coarse, fine_label=animals([2, 1, 0])).save_to_disk(tmp_path / "set")
    assert load(tmp_path / "set", test_fraction=0.01)[0].classes == ("cat", "dog", "eel")


def test_sets_without_usable_labels_are_unlabeled(tmp_path: Path) -> None:
    table([0, 1], caption=(["a", "b"], datasets.Value("string"))).save_to_disk(tmp_path / "none")
    table([0, 1], label=animals([-1, -1])).save_to_disk(tmp_path / "hidden")
    table([0, 1], label=(["a", "b"], datasets.Value("string"))).save_to_disk(tmp_path / "words")
    for name in ("none", "hidden", "words"):
        train, test = load(tmp_path / name)
        assert (len(train), train.y, test) == (2, None, None)
    assert "column label has" in train.warnings[0]


def test_damaged_and_missing_images_are_left_out(tmp_path: Path) -> None:
    rows = {
        "image": [{"bytes": png(0), "path": None}, {"bytes": b"no", "path": None}, None],
        "label": [0, 1, 2],
    }
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])}
    )
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "set")
    train, _ = load(tmp_path / "set", test_fraction=0.01)
    assert train.y.tolist() == [0]
    assert "row 1 (not an image), row 2 (no image)" in train.warnings[-1]


def test_mixed_sizes_gray_and_memory_map(tmp_path: Path) -> None:
    rows = [{"bytes": png(seed, size), "path": None} for seed, size in enumerate([6, 10, 14])]
    features = datasets.Features({"image": datasets.Image()})
    datasets.Dataset.from_dict({"image": rows}, features=features).save_to_disk(tmp_path / "set")
    train, _ = load(tmp_path / "set", channels=1)
    assert train.x.shape == (3, 10, 10, 1)
    assert "resized to 10×10" in train.warnings[0]
    mapped, _ = load(tmp_path / "set", size=500, memory_mb=1)
    assert len(list((tmp_path / "cache").glob("*/pixels"))) == 1
    assert torch.equal(mapped.x, load(tmp_path / "set", size=500)[0].x)


def test_images_in_files_beside_the_table(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
    paths = [tmp_path / "images" / name / "1.png" for name in ("cat", "dog")]
    for seed, path in enumerate(paths):
        pixels(seed).save(path)
    rows = {"image": [{"bytes": None, "path": str(path)} for path in paths]}
    made = datasets.Dataset.from_dict(rows, features=datasets.Features({"image": datasets.Image()}))
    made.save_to_disk(tmp_path / "set")
    assert np.array_equal(load(tmp_path / "set")[0].x[1].numpy(), np.asarray(pixels(1)))


def test_wrong_sets_and_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets.DatasetDict({"a": table([0]), "b": table([1])}).save_to_disk(tmp_path / "ab")
    with pytest.raises(DataError, match=r"has splits a, b: choose with data.split"):
        load(tmp_path / "ab")
    with pytest.raises(DataError, match=r"no split 'c': known: a, b"):
        load(tmp_path / "ab", split="a/c")
    with pytest.raises(DataError, match="at most two names"):
        load(tmp_path / "ab", split="a/b/a")
    datasets.Dataset.from_dict({"text": ["x"]}).save_to_disk(tmp_path / "text")
    with pytest.raises(DataError, match="no column of images, only text"):
        load(tmp_path / "text")
    with pytest.raises(DataError, match=r"data\.root is empty"):
        sets.load(DataConfig(name="huggingface"), 0)


def test_hub_names_and_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str | None]] = []

    def hub(path: str, configuration: str | None = None) -> Any:
        asked.append((path, configuration))
        raise ConnectionError("hub is away")

    monkeypatch.setattr(datasets, "load_dataset", hub)
    for root in ("user/set", "user/set:large"):
        with pytest.raises(DataError, match=r"cannot be loaded .*: hub is away"):
            sets.load(DataConfig(name="huggingface", root=root), 0)
    assert asked == [("user/set", None), ("user/set", "large")]


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install fedssl\[huggingface\]"):
        sets.load(DataConfig(name="huggingface", root="x"), 0)
