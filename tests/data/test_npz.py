"""Images in .npz files."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedssl.data import cache, npz, sets
from fedssl.data.options import DataConfig
from fedssl.errors import DataError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSSL_CACHE", str(tmp_path / "cache"))


def pixels(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def load(root: Path, **keys: Any) -> tuple[Any, Any]:
    return sets.load(DataConfig(name="npz", root=str(root), **keys), 0)


def test_a_train_file_uses_the_test_file_next_to_it(tmp_path: Path) -> None:
    x, x_test = pixels(6, 4, 5, 3), pixels(2, 4, 5, 3, seed=1)
    names: dict[str, Any] = {"classes": np.array(["cat", "dog"]), "domains": np.array([b"photo", b"sketch"])}
    domain = np.array([0, 0, 0, 1, 1, 1], dtype=np.uint8)
    np.savez(tmp_path / "pets_train.npz", x=x, y=np.array([0, 1] * 3, dtype=np.uint8), domain=domain, **names)
    np.savez(tmp_path / "pets_test.npz", x=x_test, y=np.array([1.0, 0.0]), src=np.array([b"a", b"b"]))
    for root in (tmp_path / "pets_train.npz", tmp_path):
        train, test = load(root)
        assert np.array_equal(train.x.numpy(), x)
        assert np.array_equal(test.x.numpy(), x_test)
        assert (train.y.tolist(), test.y.tolist()) == ([0, 1, 0, 1, 0, 1], [1, 0])
        assert train.classes == test.classes == ("cat", "dog")
        assert (train.domain.tolist(), train.domains) == (domain.tolist(), ("photo", "sketch"))
        assert test.domain is None
        assert train.name == "pets"


def test_other_files_have_no_test_split(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "all.npz", x=pixels(10, 4, 4), y=np.repeat([0, 1], 5))
    np.savez(tmp_path / "all_test.npz", x=pixels(3, 4, 4))
    train, test = load(tmp_path / "all.npz")
    assert (train.x.shape, test.x.shape) == ((8, 4, 4, 1), (2, 4, 4, 1))
    assert train.classes == ("0", "1")


def test_unlabeled_images_have_neither_classes_nor_test(tmp_path: Path) -> None:
    np.savez(tmp_path / "cells_train.npz", x=pixels(5, 4, 4, 3), classes=np.array(["boxes", "only"]))
    train, test = load(tmp_path / "cells_train.npz")
    assert (train.y, train.classes, test) == (None, (), None)


def write_zip(path: Path, method: int, **arrays: np.ndarray) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, values in arrays.items():
            data = io.BytesIO()
            np.save(data, values)
            archive.writestr(f"{name}.npy", data.getvalue())


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_slow_members_are_decompressed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: int
) -> None:
    monkeypatch.setattr(npz, "MIN_CACHED", 100)
    x = pixels(7, 4, 4)
    path = tmp_path / "slow.npz"
    write_zip(path, method, x=x)
    first, _ = load(path)
    with monkeypatch.context() as patch:
        patch.setattr(npz, "_decompress", None)
        second, _ = load(path)
    for images in (first, second):
        assert np.array_equal(images.x[..., 0].numpy(), x)
        assert not images.warnings
    changed = pixels(9, 4, 4, seed=1)
    write_zip(path, method, x=changed)
    assert np.array_equal(load(path)[0].x[..., 0].numpy(), changed)


def test_the_file_is_read_without_space_for_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npz, "MIN_CACHED", 100)
    monkeypatch.setenv("FEDSSL_CACHE", str(tmp_path / "slow.npz" / "cache"))  # below a file: cannot be made
    x = pixels(7, 4, 4, 1)
    write_zip(tmp_path / "slow.npz", zipfile.ZIP_LZMA, x=x)
    train, _ = load(tmp_path / "slow.npz")
    assert np.array_equal(train.x.numpy(), x)
    assert "slow.npz is decompressed again in each run" in train.warnings[0]


def test_fast_members_leave_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "MIN_CACHED", 0)
    np.savez_compressed(tmp_path / "fast.npz", x=pixels(3, 4, 4))
    load(tmp_path / "fast.npz")
    assert not cache.folder().exists()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": np.arange(3)}, "has no `x`, only y"),
        ({"x": np.zeros((2, 4, 4, 3))}, "`x` must be uint8"),
        ({"x": np.zeros((2, 4), dtype=np.uint8)}, r"not \(2, 4\)"),
        ({"x": np.zeros((2, 4, 4, 17), dtype=np.uint8)}, r"not \(2, 4, 4, 17\)"),
        ({"x": np.zeros((0, 4, 4), dtype=np.uint8)}, "no images"),
        ({"x": pixels(2, 4, 4), "y": np.arange(3)}, r"`y`: 2 images, but labels of shape \(3,\)"),
        ({"x": pixels(2, 4, 4), "y": np.array([0, -1])}, ".*are from -1 to 0"),
        ({"x": pixels(2, 4, 4), "y": np.array([0, np.nan])}, ".*label 1 is nan"),
        (
            {"x": pixels(2, 4, 4), "y": np.array([0, 2]), "classes": np.array(["a", "b"])},
            "class 2, but only 2",
        ),
        (
            {"x": pixels(2, 4, 4), "y": np.array([0, 0]), "classes": np.array([1, 2])},
            "`classes` must be a list of names, not int64",
        ),
        ({"x": np.array([None, {}])}, "contains Python objects"),
        ({"x": pixels(2, 4, 4), "y": np.array([None, 1])}, "contains Python objects"),
    ],
)
def test_wrong_contents_name_the_file_and_the_numbers(
    tmp_path: Path, arrays: dict[str, Any], message: str
) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError, match=f"bad.npz.*{message}"):
        load(tmp_path / "bad.npz")


def test_files_that_are_not_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "whole.npz", x=pixels(20, 8, 8))
    data = (tmp_path / "whole.npz").read_bytes()
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 255
    for name, content in {
        "cut": data[:-100],
        "text": b"hello there",
        "empty": b"",
        "bit": bytes(damaged),
    }.items():
        (tmp_path / f"{name}.npz").write_bytes(content)
        with pytest.raises(DataError, match=f"{name}.npz (cannot be read|contains Python objects)"):
            load(tmp_path / f"{name}.npz")
    np.save(tmp_path / "one.npy", pixels(2, 4, 4))
    with pytest.raises(DataError, match="a single array"):
        load(tmp_path / "one.npy")


def test_paths_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.root is empty"):
        sets.load(DataConfig(name="npz"), 0)
    with pytest.raises(DataError, match=r"contains 0 files \*_train.npz \(none\)"):
        load(tmp_path)
    for name in ("a_train.npz", "b_train.npz"):
        np.savez(tmp_path / name, x=pixels(2, 4, 4))
    with pytest.raises(DataError, match=r"2 files .*a_train.npz, b_train.npz"):
        load(tmp_path)
    with pytest.raises(DataError, match=r"did you mean a_train.npz"):
        load(tmp_path / "a_trian.npz")


def test_splits_must_agree_on_the_names(tmp_path: Path) -> None:
    for split, names in (("train", ["a", "b"]), ("test", ["b", "a"])):
        np.savez(tmp_path / f"n_{split}.npz", x=pixels(2, 4, 4), y=np.array([0, 1]), classes=np.array(names))
    with pytest.raises(
        DataError, match=r"classes of .*n_train.npz \['a', 'b'\] differ from those of .*n_test.npz"
    ):
        load(tmp_path)


def test_long_lists_of_names_are_cut(tmp_path: Path) -> None:
    for split, first in (("train", "a"), ("test", "b")):
        names = np.array([first, *map(str, range(100))])
        np.savez(tmp_path / f"n_{split}.npz", x=pixels(2, 4, 4), y=np.array([0, 1]), classes=names)
    with pytest.raises(DataError, match=r"\['a', '0', '1', '2', '3', '4'\] and 95 more differ from"):
        load(tmp_path)


def test_test_images_may_be_of_other_domains(tmp_path: Path) -> None:
    for split, names in (("train", ["ann", "bob"]), ("test", ["cy", "bob"])):
        domains = {"domain": np.array([0, 1, 1]), "domains": np.array(names)}
        np.savez(tmp_path / f"n_{split}.npz", x=pixels(3, 4, 4), **domains)
    train, test = load(tmp_path)
    assert train.domains == test.domains == ("ann", "bob", "cy")
    assert (train.domain.tolist(), test.domain.tolist()) == ([0, 1, 1], [2, 1, 1])


def test_test_labels_must_be_named_in_the_train_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "n_train.npz", x=pixels(2, 4, 4), y=np.array([0, 1]), classes=np.array(["a", "b"]))
    np.savez(tmp_path / "n_test.npz", x=pixels(2, 4, 4), y=np.array([0, 2]))
    with pytest.raises(DataError, match=r"n_test.npz: class 2, but only 2 names"):
        load(tmp_path)


def test_progress_includes_the_size(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", x=pixels(2, 4, 4))
    calls: list[tuple[int, int, str]] = []
    npz.load(DataConfig(name="npz", root=str(tmp_path / "p.npz")), lambda *call: calls.append(call))
    assert [done == total for done, total, _ in calls] == [False, True]
    assert calls[0][2] == "reading p.npz"


def test_images_are_torch_tensors_that_own_their_memory(tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", x=pixels(2, 4, 4))
    train, _ = load(tmp_path / "p.npz")
    train.x[0] = 0  # would be an error on a read-only map
    assert train.x.dtype == torch.uint8
