"""How far local models drift from their mean, from their start and from each other."""

import math
from types import SimpleNamespace

import pytest
import torch
from tests.small import small_run

import fedssl
from fedssl.errors import RunError
from fedssl.evaluation.drift import LocalModels, distances, drift, local_models
from fedssl.state import layer_distances

KEEP = {"checkpoint.every": 1, "checkpoint.keep": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("runs") / "a", rounds=2, **KEEP)


def test_layer_distances_by_hand():
    a = {"v": torch.tensor([3.0, 0.0]), "w": torch.tensor([[1.0], [1.0]])}
    b = {"v": torch.tensor([0.0, 4.0]), "w": torch.tensor([[1.0], [1.5]])}
    assert layer_distances(a, b, ["v", "w"]) == {"v": 5.0, "w": 0.5}


def test_local_models_are_those_that_were_uploaded(run):
    """Their mean weighted by images is the run's global model, up to rounding."""
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
    assert [row["client"] for row in found["from_global"]] == [0, 1, 2, 3, 4]
    assert len(found["between"]) == 10
    for row in found["from_global"]:
        own, merged = models.local[row["client"]], models.finished.server.model
        expected = sum(float((own[name] - merged[name]).norm()) for name in models.layers)
        assert row["d_w"] == pytest.approx(expected, rel=1e-4)
        assert row["d_w"] == pytest.approx(sum(row["layers"].values()))
    pair = found["between"][0]
    assert pair["clients"] == [0, 1]
    assert pair["d_w"] <= found["from_global"][0]["d_w"] + found["from_global"][1]["d_w"] + 1e-6


def made(local, rows, received):
    """Local models of one round, with two layers each."""
    local = {
        client: {"encoder.a": torch.tensor(a), "encoder.b": torch.tensor(b)}
        for client, (a, b) in local.items()
    }
    runner = SimpleNamespace(backbone=["encoder.a", "encoder.b"])
    finished = SimpleNamespace(models=SimpleNamespace(runner=runner))
    merged = {client: {name: 0 * value for name, value in state.items()} for client, state in local.items()}
    rows = [{"client": client, "drift": received, **row} for client, row in rows.items()]
    return LocalModels(finished, 1, rows, local, merged)


def test_drift_from_the_mean_by_hand():
    """Clients with 1 and 3 images: the mean is ¼·(8, 0) + ¾·(0, 4) = (2, 3) and ¼·4 = 1.

    Client 0 is (6, −3) and 3 away from it, client 1 is (−2, 1) and −1.
    """
    local = {0: ([8.0, 0.0], [4.0]), 1: ([0.0, 4.0], [0.0])}
    found = distances(made(local, {0: {"images": 1}, 1: {"images": 3}}, received=7.0))
    assert [row["d_w"] for row in found["from_mean"]] == pytest.approx([45**0.5 + 3, 5**0.5 + 1])
    assert [row["d_w"] for row in found["from_received"]] == [7.0, 7.0]
    assert [row["d_w"] for row in found["from_global"]] == pytest.approx([8 + 4, 4])
    assert [row["d_w"] for row in found["between"]] == pytest.approx([80**0.5 + 4])


def test_the_mean_of_a_cluster_is_that_of_its_members_by_hand():
    local = {0: ([2.0], [0.0]), 1: ([4.0], [0.0]), 2: ([100.0], [0.0])}
    rows = {0: {"images": 5, "cluster": 1}, 1: {"images": 5, "cluster": 1}, 2: {"images": 5, "cluster": 0}}
    found = distances(made(local, rows, received=1.0))
    assert [row["d_w"] for row in found["from_mean"]] == pytest.approx([1.0, 1.0, 0.0])


def test_the_protocol_names_the_papers_drift_and_ours(run):
    found, rows = run.probe("drift"), drift(run.path)
    for kind in ("from_mean", "from_received", "from_global", "between"):
        assert found[kind] == pytest.approx(sum(row["d_w"] for row in rows[kind]) / len(rows[kind]))
    # With FedAvg the global model is the mean of the local ones.
    assert found["from_mean"] == pytest.approx(found["from_global"], rel=1e-4)
    assert found["from_received"] != found["from_mean"]
    logged = [client["drift"] for client in run.metrics[-1]["clients"]]
    assert found["from_received"] == pytest.approx(sum(logged) / 5)


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
    assert all(row["d_w"] > 0 for row in found["from_mean"])
    clustered = local_models(small_run(tmp_path / "b", method="featarc", **keys).path)
    for client, row in enumerate(fedssl.Run(tmp_path / "b").metrics[-1]["clients"]):
        model = clustered.finished.server.clusters[row["cluster"]]
        assert clustered.merged[client]["encoder.conv1.weight"] is model["encoder.conv1.weight"]


def test_rounds_that_cannot_be_repeated_give_the_reason(tmp_path):
    gone = small_run(tmp_path / "gone", rounds=2)
    with pytest.raises(RunError, match=r"train with checkpoint\.every=1 checkpoint\.keep=2"):
        drift(gone.path)
    remembered = small_run(tmp_path / "target", rounds=2, objective="byol", **KEEP)
    with pytest.raises(RunError, match=r"clients keep private tensors \(target"):
        drift(remembered.path)
    alone = small_run(tmp_path / "alone", rounds=1, method="standalone")
    with pytest.raises(RunError, match="standalone shares no encoder"):
        drift(alone.path)
