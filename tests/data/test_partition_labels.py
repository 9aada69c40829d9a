"""Clients that lose labels, clients by attribute, and workers that serve several clients in turn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedssl.config import load
from fedssl.data import partition
from fedssl.data.federation import federate, take_turns
from fedssl.data.images import ImageSet
from fedssl.data.partition_labels import Attributes, LabelDrop, deal_labels
from fedssl.errors import ConfigError, DataError

LABELS = np.arange(800) % 10


def test_half_of_the_labels_are_dropped_from_equal_parts() -> None:
    whole = partition(LABELS, "iid", clients=8)
    kept = partition(LABELS, "label-drop", clients=8, balanced=True)
    owners = np.zeros(10, dtype=int)
    for part in kept:
        labels = np.unique(LABELS[part])
        assert len(labels) == 5
        owners[labels] += 1
    assert owners.tolist() == [4] * 10  # every label is kept equally often
    everything = np.concatenate(kept)
    assert len(everything) == len(set(everything.tolist()))  # clients share no images
    assert 300 < len(everything) < 500
    assert {len(part) for part in whole} == {100}


def test_kept_labels_are_a_random_permutation_for_each_client() -> None:
    """As by the authors: how many clients keep a label is binomial, and two clients' labels are unrelated."""
    kept = partition(LABELS, "label-drop", clients=8)
    assert all(len(np.unique(LABELS[part])) == 5 for part in kept)
    parts = LabelDrop(clients=400, keep=0.5).split(np.arange(400 * 150) % 10, seed=0)
    has = np.array([[label in part % 10 for label in range(10)] for part in parts])
    assert (has.sum(1) == 5).all()
    assert has.mean(0) == pytest.approx(np.full(10, 0.5), abs=4 * 0.5 / 400**0.5)
    assert np.ptp(has[:20].sum(0)) > 1  # decks would keep every label equally often
    together = (has[:, 0] & has[:, 1]).mean()
    assert together == pytest.approx(0.5 * 4 / 9, abs=0.08)


def test_all_images_of_a_kept_label_stay() -> None:
    rng = np.random.default_rng(0)
    rule = LabelDrop(clients=4, keep=0.3)
    parts = rule.split(LABELS, seed=3)
    assert all(len(np.unique(LABELS[part])) == 3 for part in parts)
    assert [part.tolist() for part in parts] == [part.tolist() for part in rule.split(LABELS, seed=3)]
    assert [part.tolist() for part in parts] != [part.tolist() for part in rule.split(LABELS, seed=4)]
    (only,) = LabelDrop(clients=1, keep=1.0).split(LABELS, seed=0)
    assert only.tolist() == list(range(800))
    for each, clients in ((3, 7), (10, 2), (1, 25)):
        dealt = deal_labels(10, each, clients, rng)
        counts = np.bincount(np.concatenate(dealt), minlength=10)
        assert all(len(set(own.tolist())) == each for own in dealt)
        assert np.ptp(counts) <= 1


def test_bad_input_of_label_drop() -> None:
    with pytest.raises(DataError, match="needs labels"):
        LabelDrop().split(None, 0, count=100)
    with pytest.raises(DataError, match=r"client \d has no image"):
        LabelDrop(clients=5, keep=0.1).split(np.arange(10), 0)


def test_a_client_has_all_images_with_its_attribute() -> None:
    has = torch.tensor([[1, 0, 1], [1, 1, 0], [0, 0, 1], [1, 1, 1]], dtype=torch.bool)
    images = ImageSet(torch.zeros(4, 1, 1, 1, dtype=torch.uint8), attributes=has)
    rule = Attributes(clients=3)
    parts = rule.split(None, 0, count=4, features=rule.extract_features(images))
    assert sorted(part.tolist() for part in parts) == [[0, 1, 3], [0, 2, 3], [1, 3]]
    assert len(Attributes(clients=2).split(None, 0, count=4, features=rule.extract_features(images))) == 2
    assert torch.equal(images.subset(torch.tensor([3, 0])).attributes, has[[3, 0]])


def test_classes_are_used_without_attributes() -> None:
    parts = partition(LABELS, "attributes", clients=10)
    assert sorted(int(LABELS[part[0]]) for part in parts) == list(range(10))
    assert all(len(part) == 80 for part in parts)


def test_bad_input_of_attributes() -> None:
    with pytest.raises(DataError, match=r"attributes .* or classes"):
        Attributes().split(None, 0, count=100)
    with pytest.raises(DataError, match=r"partition\.clients=40, but there are only 10 attributes"):
        Attributes().split(LABELS, 0)
    with pytest.raises(DataError, match="no image has attribute 1"):
        Attributes(clients=2).split(None, 0, count=3, features=np.array([[1, 0]] * 3, dtype=np.float32))


WORKERS = {
    "data": {"name": "digits", "limit": 100},
    "partition": {"scheme": "iid", "clients": 8, "workers": 4},
    "shift": {"name": "padpaf-mnist"},
}


def test_a_worker_serves_its_clients_in_turn() -> None:
    config = load(WORKERS)
    federation = federate(config)
    alone = federate(load({**WORKERS, "partition": {"scheme": "iid", "clients": 8}}))
    assert federation.clients == 4
    for round, expected in ((1, 4), (2, 5), (3, 4), (8, 5)):  # worker 2 has clients 4 and 5
        images = federation.images_of(2, config, round)
        assert (images.client, images.clients) == (expected, 8)
        assert images.indices.tolist() == alone.parts[expected].tolist()
        x, _ = images.batch(torch.arange(3))
        theirs, _ = alone.images_of(expected, config).batch(torch.arange(3))
        assert torch.equal(x, theirs)  # with the look of the client whose turn it is
    assert sorted(federation.parts[2].tolist()) == sorted(
        [*alone.parts[4].tolist(), *alone.parts[5].tolist()]
    )


def test_workers_must_share_evenly() -> None:
    with pytest.raises(ConfigError, match=r"partition\.workers=3 must divide the number of clients, 8"):
        federate(load(WORKERS, {"partition.workers": 3}))
    with pytest.raises(ConfigError, match="must divide the number of clients, 2"):
        take_turns([np.arange(2)] * 2, 4)
