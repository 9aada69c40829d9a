"""How far local models drift, and their features in one plane."""

import math

import numpy as np
import pytest
import torch

import fedssl
from fedssl.errors import DataError, RunError
from fedssl.papers.analysis.drift import drift, local_models
from fedssl.papers.analysis.feature_map import feature_map, joint, save_picture
from fedssl.state import layer_distances
from tests.small import small_run

KEEP = {"checkpoint.every": 1, "checkpoint.keep": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("runs") / "a", rounds=2, **KEEP)


def test_layer_distances_by_hand():
    a = {"v": torch.tensor([3.0, 0.0]), "w": torch.tensor([[1.0], [1.0]])}
    b = {"v": torch.tensor([0.0, 4.0]), "w": torch.tensor([[1.0], [1.5]])}
    assert layer_distances(a, b, ["v", "w"]) == {"v": 5.0, "w": 0.5}


def test_local_models_are_those_that_were_uploaded(run):
    """Their mean by images is the global model that the run has, up to rounding."""
    found = local_models(run.path)
    assert found.round == 2
    images = {row["client"]: row["images"] for row in run.metrics[-1]["clients"]}
    merged = found.finished.server.model
    for name in found.layers:
        mean = sum(images[client] * state[name].double() for client, state in found.local.items())
        mean /= sum(images.values())
        torch.testing.assert_close(mean.float(), merged[name], rtol=1e-5, atol=1e-6)
    assert all(name.startswith("encoder.") for name in found.layers)


def test_d_w_is_the_sum_over_layers(run):
    found, models = drift(run.path), local_models(run.path)
    assert [row["client"] for row in found["to_global"]] == [0, 1, 2, 3, 4]
    assert len(found["between"]) == 10
    for row in found["to_global"]:
        own, merged = models.local[row["client"]], models.finished.server.model
        expected = sum(float((own[name] - merged[name]).norm()) for name in models.layers)
        assert row["d_w"] == pytest.approx(expected, rel=1e-4)
        assert row["d_w"] == pytest.approx(sum(row["layers"].values()))
    pair = found["between"][0]
    assert pair["clients"] == [0, 1]
    assert pair["d_w"] <= found["to_global"][0]["d_w"] + found["to_global"][1]["d_w"] + 1e-6


def test_every_round_logs_the_drift_from_what_was_received(run):
    for line in run.metrics:
        images = sum(client["images"] for client in line["clients"])
        mean = sum(client["drift"] * client["images"] for client in line["clients"]) / images
        assert line["drift"] == pytest.approx(mean)
        for client in line["clients"]:  # a sum of norms is at least the norm of all, without the projector's
            assert client["drift"] > 0
            assert client["drift"] <= client["divergence"] * math.sqrt(64)


def test_methods_that_remember_their_model_need_no_second_training(tmp_path):
    keys = {"objective": "simsiam", "rounds": 2, "train.epochs": 0.5}
    run = small_run(tmp_path / "a", method={"name": "fedema", "scaler": 0.5}, **keys)
    found = drift(run.path)  # one checkpoint, and no round is run again
    assert all(row["d_w"] > 0 for row in found["to_global"])
    clustered = local_models(small_run(tmp_path / "b", method="featarc", **keys).path)
    for client, row in enumerate(fedssl.Run(tmp_path / "b").metrics[-1]["clients"]):
        model = clustered.finished.server.clusters[row["cluster"]]
        assert clustered.merged[client]["encoder.conv1.weight"] is model["encoder.conv1.weight"]


def test_what_cannot_be_made_anew_says_why(tmp_path):
    gone = small_run(tmp_path / "gone", rounds=2)
    with pytest.raises(RunError, match=r"train with checkpoint\.every=1 checkpoint\.keep=2"):
        drift(gone.path)
    remembered = small_run(tmp_path / "target", rounds=2, objective="byol", **KEEP)
    with pytest.raises(RunError, match="clients remembered target"):
        drift(remembered.path)
    alone = small_run(tmp_path / "alone", rounds=1, method="standalone")
    with pytest.raises(RunError, match="standalone shares no encoder"):
        drift(alone.path)


# --- the map --------------------------------------------------------------------------------------


def test_features_of_three_models_are_in_one_plane(run, tmp_path):
    seen = feature_map(run.path, clients=(0, 2), images=40)
    assert seen.models == ["global", "client 0", "client 2"]
    assert seen.points.shape == (3, 40, 2)
    assert np.isfinite(seen.points).all()
    assert len(seen.labels) == 40
    again = feature_map(run.path, clients=(0, 2), images=40)
    np.testing.assert_array_equal(seen.points, again.points)
    file = tmp_path / "map.png"
    save_picture(file, again)
    assert file.read_bytes().startswith(b"\x89PNG")


def test_models_that_agree_lie_on_each_other_and_others_do_not():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 30))
    points, _ = joint([features, features + 1e-6, features + 30], seed=0)
    own = np.linalg.norm(points[0] - points[1], axis=1)
    other = np.linalg.norm(points[0] - points[2], axis=1)
    assert np.median(own) < 0.2 * np.median(other)


def test_bad_requests_are_named(run):
    with pytest.raises(RunError, match=r"client 9 took no part in round 2: choose from \[0, 1, 2, 3, 4\]"):
        feature_map(run.path, clients=(0, 9))
    with pytest.raises(DataError, match="a map of 3 points"):
        joint([np.zeros((1, 4))] * 3, seed=0)
