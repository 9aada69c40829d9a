"""Tables of images, and natural federations with a folder or a value for each site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import fedssl.data
from fedssl.config import load
from fedssl.data import manifest
from fedssl.data.federation import federate
from fedssl.data.options import DataConfig
from fedssl.errors import ConfigError, DataError, FedsslError

COLUMNS = {
    "path": ["a/0.png", "a/1.png", "b/0.png", "b/1.png", "b/2.png"],
    "site": ["rome", "rome", "oslo", "oslo", "oslo"],
    "label": ["cat", "dog", "cat", "cat", ""],
    "split": ["train", "train", "train", "test", "hidden"],
}


def images(root: Path) -> None:
    for number, path in enumerate(COLUMNS["path"]):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (10 * number, 0, 0)).save(root / path)


def table(file: Path, columns: dict[str, list[str]]) -> Path:
    if file.suffix == ".parquet":
        pq.write_table(pa.table(columns), file)
    else:
        rows = [",".join(columns), *(",".join(row) for row in zip(*columns.values(), strict=True))]
        file.write_text("\n".join(rows), encoding="utf-8")
    return file


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_table_gives_paths_and_metadata_of_images(name: str, tmp_path: Path) -> None:
    images(tmp_path)
    file = table(tmp_path / name, COLUMNS)
    train, test = fedssl.data.sets.load(DataConfig(name="manifest", root=str(file)), 0)
    assert train.x[:, 0, 0, 0].tolist() == [0, 10, 20]
    assert test is not None
    assert test.x[:, 0, 0, 0].tolist() == [30]
    assert (train.domains, train.classes) == (("oslo", "rome"), ("cat", "dog"))
    assert train.domain is not None
    assert train.domain.tolist() == [1, 1, 0]
    assert train.y is not None
    assert train.y.tolist() == [0, 1, 0]
    assert "1 rows of split 'hidden' are left out" in train.warnings


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    images(tmp_path)
    file = table(tmp_path / "t.csv", {"file": COLUMNS["path"], "country": COLUMNS["site"]})
    config = DataConfig(name="manifest", root=str(file), columns="path=file,site=country")
    train, _ = manifest.load(config)
    assert (len(train), train.domains, train.y) == (5, ("oslo", "rome"), None)


@pytest.mark.parametrize(
    ("columns", "keys", "error", "text"),
    [
        ({"file": ["a"]}, {}, DataError, "no column 'path', only file; data.columns names another"),
        ({"path": ["a"]}, {"columns": "site=plaice"}, DataError, "no column 'plaice': known: path"),
        ({"path": ["a"]}, {"columns": "place=path"}, ConfigError, "WHAT is path, site, label, split"),
        ({"path": ["a"], "split": ["val"]}, {}, DataError, "lists no images to train on"),
    ],
)
def test_tables_with_missing_columns(
    columns: dict[str, list[str]], keys: dict[str, str], error: type, text: str, tmp_path: Path
) -> None:
    file = table(tmp_path / "t.csv", columns)
    with pytest.raises(error, match=text):
        manifest.load(DataConfig(name="manifest", root=str(file), **keys))


def config(root: Path, **partition: Any) -> fedssl.Config:
    keys = {"data.name": "folder", "data.root": str(root), "data.test_fraction": 0.1}
    return load({"partition": {"scheme": "folder", **partition}}, keys)


def sites(root: Path, sizes: dict[str, int], labeled: bool = False) -> None:
    for site, count in sizes.items():
        for number in range(count):
            folder = root / site / ("odd" if number % 2 else "even") if labeled else root / site
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4), (number, len(site), 0)).save(folder / f"{number}.png")


@pytest.mark.parametrize("labeled", [False, True])
def test_every_folder_is_a_client(labeled: bool, tmp_path: Path) -> None:
    sites(tmp_path, {"oslo": 6, "rome": 30}, labeled)
    found = federate(config(tmp_path))
    assert found.train.domains == ("oslo", "rome")
    assert (found.train.y is not None) == labeled
    assert found.clients == 2
    assert sorted(np.concatenate(found.parts).tolist()) == list(range(len(found.train)))
    assert found.train.domain is not None
    for site, part in enumerate(found.parts):
        assert set(found.train.domain.numpy()[part].tolist()) == {site}


def test_small_sites_can_be_left_out_and_sites_sampled() -> None:
    domains = np.repeat(np.arange(6), [1, 5, 9, 2, 7, 8])
    split = fedssl.data.partition(np.zeros(32), scheme="folder", domains=domains, min_images=5)
    assert [len(part) for part in split] == [5, 9, 7, 8]
    drawn = [
        fedssl.data.partition(np.zeros(32), scheme="folder", clients=3, domains=domains, seed=seed)
        for seed in (0, 0, 1)
    ]
    assert [part.tolist() for part in drawn[0]] == [part.tolist() for part in drawn[1]]
    assert [len(part) for part in drawn[0]] != [len(part) for part in drawn[2]]


@pytest.mark.parametrize(
    ("domains", "keys", "text"),
    [
        (None, {}, "needs sites, which this data set does not have"),
        ([0, 1], {"clients": 3}, "partition.clients=3, but 2 sites have at least partition.min_images=1"),
        ([0, 1], {"min_images": 2}, "no site has partition.min_images=2 images"),
    ],
)
def test_missing_sites_are_an_error(domains: list[int] | None, keys: dict[str, int], text: str) -> None:
    with pytest.raises(FedsslError, match=text):
        fedssl.data.partition([0, 0], scheme="folder", domains=domains, **keys)
