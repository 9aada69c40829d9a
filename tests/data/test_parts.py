"""Two arrays behave as a list of arrays does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.small import small_run

from fedssl import rundir
from fedssl.data.federation import Federation
from fedssl.data.images import ImageSet
from fedssl.data.parts import Parts

NAIVE = [np.array([5, 1]), np.empty(0, dtype=np.int64), np.array([2, 0, 1]), np.array([4])]


def test_parts_are_a_list_of_arrays() -> None:
    parts = Parts.of(NAIVE)
    assert len(parts) == 4
    assert [part.tolist() for part in parts] == [[5, 1], [], [2, 0, 1], [4]]
    assert parts[-1].tolist() == [4]
    assert [part.tolist() for part in parts[1:3]] == [[], [2, 0, 1]]
    assert Parts.of(parts) is parts
    with pytest.raises(IndexError):
        parts[4]


def test_counts_by_hand() -> None:
    values = np.array([0, 2, 2, 1, 0, 1])  # of images 0 to 5
    counts = Parts.of(NAIVE).counts(values, 3)
    assert counts.tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 2], [1, 0, 0]]


def test_holdings_name_only_what_a_client_has() -> None:
    import torch

    images = ImageSet(torch.zeros(6, 1, 1, 1), torch.tensor([3, 7, 7, 5, 3, 5]), tuple("abcdefgh"))
    found = Federation(images, None, Parts.of(NAIVE), np.empty(0, dtype=np.int64)).holdings()
    assert found["class"]["counts"] == [{"5": 1, "7": 1}, {}, {"3": 1, "7": 2}, {"3": 1}]


def test_a_partition_of_many_clients_is_stored_in_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = small_run(tmp_path / "listed", rounds=1)
    monkeypatch.setattr(rundir, "LISTED", 3)
    many = small_run(tmp_path / "many", rounds=1, **{"engine.workers": 2})
    stored = np.load(many.path / "partition.npz")
    before = listed.directory.partition()
    assert stored["indices"].tolist() == [index for part in before["indices"] for index in part]
    assert many.directory.partition()["sizes"] == before["sizes"] == stored["sizes"].tolist()
    assert many.directory.client_sizes() == before["sizes"]
    assert "indices" not in many.directory.partition()
