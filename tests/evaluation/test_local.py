"""The local test: each client's model on its own class mix of the test split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.small import small_run
from torch import nn

import fedssl
from fedssl.errors import DataError
from fedssl.evaluation import linear
from fedssl.evaluation.features import extract
from fedssl.evaluation.loaded import load_run
from fedssl.evaluation.subset import same_class_mix

CPU = torch.device("cpu")


# --- the draw -------------------------------------------------------------------------------------


def counts(labels: torch.Tensor, index: torch.Tensor, classes: int) -> list[int]:
    return labels[index].bincount(minlength=classes).tolist()


def test_the_largest_draw_with_a_class_mix_by_hand() -> None:
    """Test images 100 of each of four classes; a client with 60, 30 and 10 images of three of them.

    All 100 of class 0 are 60 %, so 50 are 30 % and 16.7 are 10 %.
    """
    labels = torch.arange(400) % 4
    like = torch.tensor([0] * 60 + [1] * 30 + [3] * 10)
    index = same_class_mix(labels, like, 0)
    assert counts(labels, index, 4) == [100, 50, 0, 17]
    assert torch.equal(index, torch.unique(index))
    # Half as many test images of class 0: half as many of all.
    fewer = torch.cat((labels[labels > 0], torch.zeros(50, dtype=torch.int64)))
    assert counts(fewer, same_class_mix(fewer, like, 0), 4) == [50, 25, 0, 8]
    # The class that runs out first decides, even if it is rare.
    rare = torch.tensor([0] * 100 + [1] * 100 + [3] * 5)
    assert counts(rare, same_class_mix(rare, like, 0), 4) == [30, 15, 0, 5]


def test_equal_shares_take_the_whole_test_split() -> None:
    labels = torch.arange(60) % 3
    assert torch.equal(same_class_mix(labels, torch.tensor([2, 1, 0]), 0), torch.arange(60))


def test_the_draw_is_seeded_by_run_and_client() -> None:
    labels, like = torch.arange(400) % 4, torch.tensor([0] * 3 + [1])
    one = same_class_mix(labels, like, 0, 5)
    assert torch.equal(one, same_class_mix(labels, like, 0, 5))
    assert not torch.equal(one, same_class_mix(labels, like, 1, 5))
    assert not torch.equal(one, same_class_mix(labels, like, 0, 6))


def test_classes_without_test_images_are_left_out_and_something_must_be_left() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    assert counts(labels, same_class_mix(labels, torch.tensor([0, 0, 1, 7]), 0), 2) == [2, 1]
    with pytest.raises(DataError, match="no test image is of a class that the client has"):
        same_class_mix(labels, torch.tensor([2, 2]), 0)


# --- whole runs -----------------------------------------------------------------------------------


def by_hand(run: Any, encoders: list[nn.Module], shifted: bool = False) -> list[float]:
    """For each client the accuracy of a probe on all training images, on its class mix of the test split."""
    train, test, parts = run.federation.train, run.federation.test, run.federation.parts
    shift, clients, x = run.trained.shift, len(parts), train.x.clone()
    for client, part in enumerate(parts):
        x[part] = shift.apply(train.x[part], client, clients)
    found = []
    for client, (part, encoder) in enumerate(zip(parts, encoders, strict=True)):
        index = same_class_mix(test.y, train.y[part], run.trained.seed, client)
        own = test.subset(index)
        seen = type(own)(shift.apply(own.x, client, clients), own.y)
        features = extract(encoder, type(train)(x, train.y), mean=0.5, std=0.25, device=CPU)
        probe = linear.fit(features, train.y, 10)
        predicted = probe.predict(extract(encoder, seen, mean=0.5, std=0.25, device=CPU))
        found.append(float((predicted == own.y).double().mean()))
    return found


@pytest.fixture(scope="module")
def clustered(tmp_path_factory: pytest.TempPathFactory) -> fedssl.Run:
    return small_run(tmp_path_factory.mktemp("runs") / "a", method="featarc", rounds=2)


def test_each_client_is_tested_with_its_clusters_model(clustered: fedssl.Run) -> None:
    found, run = clustered.probe("local"), load_run(clustered.directory, {})
    encoders = [run.models.personal(run.server, run.memory_rounds, client) for client in range(5)]
    expected = by_hand(run, encoders)
    assert [row["accuracy"] for row in found["clients"]] == pytest.approx(expected)
    assert found["accuracy"] == pytest.approx(sum(expected) / 5)
    assert found["model"] == "cluster, mean of 5 clients"
    untrained = by_hand(run, [run.models.untrained()] * 5)
    assert found["untrained"] == pytest.approx(sum(untrained) / 5)
    for row, part in zip(found["clients"], run.federation.parts, strict=True):  # two classes a client
        assert run.federation.train.y is not None
        assert len(run.federation.train.y[part].unique()) == 2
        assert row["images"] < len(run.federation.test) / 2  # type: ignore[arg-type]


def test_a_client_sees_its_own_shift_and_so_does_the_probe(tmp_path: Path) -> None:
    run = small_run(tmp_path / "a", rounds=1, shift="rotation")
    loaded = load_run(run.directory, {})
    encoder = loaded.models.exported(loaded.server, loaded.memory_rounds).module
    found = run.probe("local")
    assert [row["accuracy"] for row in found["clients"]] == pytest.approx(by_hand(loaded, [encoder] * 5))
    assert found["model"] == "global, mean of 5 clients"


@pytest.mark.parametrize(
    ("method", "whose"),
    [
        ({"name": "fedema", "scaler": 0.5}, "global"),
        ("fedper", "global"),
        ("fedbn", "personal"),
        ("ditto", "personal"),
        ({"name": "fedprox", "start": "own"}, "personal"),
        ("standalone", "personal"),
    ],
)
def test_a_clients_model_is_what_its_method_says(tmp_path: Path, method: Any, whose: str) -> None:
    run = small_run(tmp_path / "a", method=method, objective="simsiam", rounds=1, **{"train.epochs": 0.5})
    loaded = load_run(run.directory, {})
    kinds = {loaded.models.kind_of_client}
    encoder = loaded.models.of_client(loaded.server, loaded.memory_rounds, 3).module
    if whose == "global":
        expected = loaded.models.exported(loaded.server, loaded.memory_rounds).module
    else:
        expected = loaded.models.personal(loaded.server, loaded.memory_rounds, 3)
    assert kinds == {whose}
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, expected.state_dict()[name])


def test_a_probe_on_the_clients_own_images(clustered: fedssl.Run) -> None:
    found = clustered.probe("local", **{"protocol.train": "own"})
    run = load_run(clustered.directory, {})
    train, test, part = run.federation.train, run.federation.test, run.federation.parts[1]
    assert train.y is not None
    assert test is not None
    assert test.y is not None
    own = test.subset(same_class_mix(test.y, train.y[part], 0, 1))
    encoder = run.models.personal(run.server, run.memory_rounds, 1)
    features = [extract(encoder, each, mean=0.5, std=0.25, device=CPU) for each in (train.subset(part), own)]
    predicted = linear.fit(features[0], train.y[part], 10).predict(features[1])
    assert found["clients"][1]["accuracy"] == pytest.approx(float((predicted == own.y).double().mean()))


def test_personal_features_with_a_part_to_tune(tmp_path: Path) -> None:
    keys = {"rounds": 1, "probe.epochs": 2, "partition": {"scheme": "iid", "clients": 2}}
    run = small_run(tmp_path / "a", method={"name": "fedstyle", "style_epochs": 1}, **keys)
    found = run.probe("local")
    assert found["model"] == "personal, mean of 2 clients"
    assert np.isfinite(found["accuracy"])
    without = run.probe("local", **{"method.stylized": False})
    assert [row["images"] for row in found["clients"]] == [row["images"] for row in without["clients"]]
