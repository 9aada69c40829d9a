"""Several data sets as the styles of one, and equal shares of a limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedssl.config import load as load_config
from fedssl.data import sets
from fedssl.data.federation import federate
from fedssl.data.options import DataConfig
from fedssl.data.sets import limit_images, share_equally
from fedssl.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSSL_CACHE", str(tmp_path_factory.mktemp("cache")))


def save(folder: Path, name: str, counts: list[int], side: int, channels: int, **more: Any) -> None:
    """NAME_train.npz with this many images of each class, NAME_test.npz with two; pixels are 10·class."""
    for split, numbers in (("train", counts), ("test", [2] * len(counts))):
        y = np.repeat(np.arange(len(numbers)), numbers)
        shape = (len(y), side, side, channels) if channels > 1 else (len(y), side, side)
        x = np.broadcast_to((10 * y).reshape(-1, *[1] * (len(shape) - 1)), shape).astype(np.uint8)
        np.savez(folder / f"{name}_{split}.npz", x=x, y=y, **more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path, "mnist", [30, 30], 7, 1)
    save(tmp_path, "svhn", [20, 20], 8, 3)
    save(tmp_path, "usps", [4, 8], 4, 1)
    return tmp_path


def load(folder: Path, name: str = "mnist+svhn+usps", seed: int = 0, **keys: Any) -> tuple[Any, Any]:
    return sets.load(DataConfig(name=name, root=str(folder), **keys), seed)


def test_styles_are_joined_at_the_largest_size_and_depth(folder: Path) -> None:
    train, test = load(folder)
    assert train.x.shape == (60 + 40 + 12, 8, 8, 3)
    assert test.x.shape == (12, 8, 8, 3)
    assert train.domains == test.domains == ("mnist", "svhn", "usps")
    assert train.domain.tolist() == [0] * 60 + [1] * 40 + [2] * 12
    assert test.domain.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert torch.equal(train.x[:, 4, 4, 1].long(), 10 * train.y)  # every label still belongs to its image
    assert torch.equal(test.x[:, 0, 7, 2].long(), 10 * test.y)
    assert train.name == "mnist+svhn+usps"
    assert not train.mirrored  # digits, though the files do not say so


def test_size_and_channels_can_be_set(folder: Path) -> None:
    train, test = load(folder, size=5, channels=1)
    assert train.x.shape[1:] == test.x.shape[1:] == (5, 5, 1)


def test_a_limit_is_shared_equally_seeded_and_stratified(folder: Path) -> None:
    train, test = load(folder, limit=30)
    assert train.domain.bincount().tolist() == [10, 10, 10]
    for style, expected in enumerate(([5, 5], [5, 5], [3, 7])):  # usps is two thirds class 1
        assert (train.y[train.domain == style].bincount() - torch.tensor(expected)).abs().max() <= 1
    assert len(test) == 12
    again = load(folder, limit=30)[0]
    assert torch.equal(again.x, train.x)
    assert len(load(folder, limit=60)[0].domain[load(folder, limit=60)[0].domain == 2]) == 12  # all there are
    assert load(folder, limit=60)[0].domain.bincount().tolist() == [24, 24, 12]
    with pytest.raises(DataError, match=r"data.limit=113, but mnist\+svhn\+usps has only 112"):
        load(folder, limit=113)


@pytest.mark.parametrize(
    ("counts", "total", "shares"),
    [
        ([10, 10, 10], 30, [10, 10, 10]),
        ([10, 10, 10], 10, [3, 3, 4]),
        ([100, 4, 20], 60, [36, 4, 20]),
        ([5, 5], 0, [5, 5]),
        ([1, 50, 2], 3, [1, 1, 1]),
    ],
)
def test_equal_shares_by_hand(counts: list[int], total: int, shares: list[int]) -> None:
    assert share_equally(counts, total, "made") == shares


def test_a_limit_of_any_set_with_styles_is_shared_equally() -> None:
    from tests.data.test_sets import images

    domain = torch.tensor([0] * 40 + [1] * 8)
    few = limit_images(images([0, 1] * 24, domain=domain), 12, seed=0)
    assert few.domain is not None
    assert few.domain.bincount().tolist() == [6, 6]
    assert (few.domain * 2 + few.y).bincount().tolist() == [3, 3, 3, 3]


def test_sets_of_packages_can_be_styles_too() -> None:
    train, test = sets.load(DataConfig(name="digits+mnist5k", limit=40, size=8, test_fraction=0.05), 0)
    assert train.x.shape == (40, 8, 8, 1)
    assert train.domain is not None
    assert train.domain.bincount().tolist() == [20, 20]
    assert test is not None
    assert test.domain is not None
    assert test.domain.bincount().tolist() == [90, 250]


def test_every_client_has_one_style_and_as_many_images_as_the_others(folder: Path) -> None:
    keys = {"data": {"name": "mnist+svhn+usps", "root": str(folder)}}
    config = load_config({**keys, "partition": {"scheme": "domain", "per_domain": 2}})
    federation = federate(config)
    assert [len(part) for part in federation.parts] == [112 // 6] * 6
    domain = federation.train.domain
    assert domain is not None
    assert [set(domain[part].tolist()) for part in federation.parts] == [{0}, {0}, {1}, {1}, {2}, {2}]
    assert len(set(federation.parts[4].tolist())) < len(federation.parts[4])  # usps has to repeat


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("mnist+nmist", ConfigError, "unknown data set 'nmist': did you mean mnist"),
        ("mnist+mnist", ConfigError, "mnist is given twice"),
        ("mnist+npz", ConfigError, "npz needs its own data.root"),
        ("mnist+three", DataError, "mnist has 2 classes and three 3"),
        ("cats+dogs", DataError, "class 0 is 'cat' in cats and 'dog' in dogs"),
        ("mnist+bare", DataError, "bare has no labels"),
    ],
)
def test_data_sets_that_cannot_be_joined(folder: Path, name: str, error: Any, text: str) -> None:
    save(folder, "three", [5, 5, 5], 4, 1)
    save(folder, "cats", [5, 5], 4, 1, classes=np.array(["cat", "dog"]))
    save(folder, "dogs", [5, 5], 4, 1, classes=np.array(["dog", "cat"]))
    np.savez(folder / "bare_train.npz", x=np.zeros((4, 3, 3), dtype=np.uint8))
    with pytest.raises(error, match=text):
        load(folder, name)


def test_numbers_agree_with_names(folder: Path) -> None:
    save(folder, "cats", [5, 5], 4, 1, classes=np.array(["cat", "dog"]))
    assert load(folder, "mnist+cats")[0].classes == load(folder, "cats+mnist")[0].classes == ("cat", "dog")
