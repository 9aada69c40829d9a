"""Training without a server: neighbors average, absent nodes keep their models."""

import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from tests.small import SMALL, arguments, digest, small_run
from tests.suite.waiting import wait_for_file

import fedssl
from fedssl.config import load, parse_overrides
from fedssl.engines.checkpoint import Checkpoints
from fedssl.engines.gossip import consensus_distance, mix_nodes
from fedssl.engines.memory import MemoryStore
from fedssl.engines.mixing import among, graph, metropolis_hastings, spectral_gap
from fedssl.errors import ConfigError
from fedssl.methods.client import ClientFailure
from fedssl.methods.fedavg import FedAvg
from fedssl.rng import numpy_rng

IID = {"partition": {"scheme": "iid", "clients": 5}}
TOPOLOGIES = ("star", "cycle", "tree", "random", "complete")


def gossip(out, topology="cycle", **overrides):
    return small_run(out, **{"engine.name": "gossip", "engine.topology": topology, **overrides})


def last_state(run):
    """The server state after the last round; in gossip it holds the models of all nodes."""
    memories = MemoryStore(run.directory.memories, 0)
    latest = Checkpoints(run.directory.checkpoints, 0, memories).latest()
    assert latest is not None
    return latest.server


def nodes(run):
    """The models of all nodes after the last round."""
    return last_state(run).nodes


# --- mixing tensors -------------------------------------------------------------------------------


def states(count, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return [
        {
            "w": torch.randn(3, 5, generator=rng),
            "statistic": torch.rand(4, generator=rng),
            "counter": torch.tensor(int(node)),
        }
        for node in range(count)
    ]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_mixing_is_a_product_with_the_matrix(topology):
    models = states(7)
    weights = metropolis_hastings(graph(topology, 7, 0.7, numpy_rng(1)))
    mixed = mix_nodes(models, weights)
    for name in ("w", "statistic"):
        expected = np.einsum("ij,j...->i...", weights, np.stack([m[name].double().numpy() for m in models]))
        torch.testing.assert_close(
            torch.stack([m[name] for m in mixed]).double(), torch.from_numpy(expected), rtol=1e-6, atol=1e-7
        )
    for node, model in enumerate(mixed):
        assert int(model["counter"]) == max(np.flatnonzero(weights[node]))
        assert model["w"].dtype == torch.float32


def test_large_tensors_are_mixed_in_pieces(monkeypatch):
    models, weights = states(4), metropolis_hastings(graph("cycle", 4, 0.7, numpy_rng(0)))
    whole = mix_nodes(models, weights)
    monkeypatch.setattr("fedssl.engines.gossip.CHUNK", 4)
    for one, other in zip(whole, mix_nodes(models, weights), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_mixing_alone_leads_to_consensus_and_keeps_the_mean(topology):
    models = states(9)
    weights = metropolis_hastings(graph(topology, 9, 0.7, numpy_rng(2)))
    mean = torch.stack([model["w"] for model in models]).mean(0)
    before, shrink = consensus_distance(models, ["w"]), 1 - spectral_gap(weights)
    for _ in range(400):
        models = mix_nodes(models, weights)
        after = consensus_distance(models, ["w"])
        # Each step shrinks it at least by |λ₂|, down to the last bits of float32.
        assert after <= shrink * before + 1e-6
        before = after
    assert before < 1e-6
    for model in models:
        torch.testing.assert_close(model["w"], mean, rtol=0, atol=2e-6)


def test_consensus_distance_by_hand():
    models = [{"w": torch.tensor([0.0, 0.0])}, {"w": torch.tensor([6.0, 8.0])}]
    assert consensus_distance(models, ["w"]) == 5.0  # both are 5 from (3, 4)


def test_absent_nodes_keep_their_tensors():
    models = states(5)
    mixed = mix_nodes(models, among(graph("cycle", 5, 0.7, numpy_rng(0)), [0, 1, 3]))
    for node in (2, 3, 4):  # 3 is there, but both its neighbors are away
        assert all(torch.equal(mixed[node][name], models[node][name]) for name in models[node])
    # 0 and 1 have only each other: one half of both.
    torch.testing.assert_close(mixed[0]["w"], (models[0]["w"] + models[1]["w"]) / 2)
    assert mixed[0]["counter"] == mixed[1]["counter"] == 1


# --- whole runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["simclr", "byol"])
def test_a_complete_graph_with_uniform_weights_is_fedavg(tmp_path, objective):
    """To 1e-4 of each number after three rounds: sums round differently (double here, float there)."""
    keys = {"objective": objective, **IID}
    server = small_run(tmp_path / "server", **keys)
    peers = gossip(tmp_path / "peers", "complete", **keys)
    average = last_state(server).model
    for model in nodes(peers):
        torch.testing.assert_close(model, average, rtol=1e-4, atol=1e-5)
    losses = [[line["loss"] for line in run.metrics] for run in (server, peers)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert all(line["consensus_distance"] < 1e-6 for line in peers.metrics)
    assert all(line["spectral_gap"] == pytest.approx(1) for line in peers.metrics)


def test_other_graphs_differ_from_fedavg(tmp_path):
    run = gossip(tmp_path / "a", "cycle")
    assert len(nodes(run)) == 5
    for line in run.metrics:
        assert line["consensus_distance"] > 1e-3
        assert line["spectral_gap"] == pytest.approx(2 / 3 * (1 - np.cos(2 * np.pi / 5)))


def test_one_node_is_a_federation(tmp_path):
    keys = {"partition": {"scheme": "iid", "clients": 1}, "data.limit": 40}
    alone = gossip(tmp_path / "peers", "random", **keys)
    assert digest(alone) == digest(small_run(tmp_path / "server", **keys))
    assert alone.metrics[-1]["consensus_distance"] == 0


def test_the_result_names_the_owner_of_the_encoder(tmp_path):
    run = gossip(tmp_path / "a", rounds=2, **{"probe.protocol": "knn", "probe.every": 2})
    found = run.result["probes"][0]
    assert found["model"] == "each node's own, mean of 5 nodes"
    assert run.directory.encoder_description()["trained"] == "node 0"
    encoder = nodes(run)[0]
    for name, value in run.encoder.state_dict().items():
        assert torch.equal(value, encoder[f"encoder.{name}"]), name
    assert run.probe("knn")["accuracy"] == found["accuracy"]
    assert run.metrics[-1]["probe"]["knn"] == pytest.approx(found["accuracy"])


def test_personal_methods_evaluate_the_start_of_the_next_round(tmp_path):
    """FedU's node combines its neighbors' average with its own model."""
    run = gossip(tmp_path / "a", objective="byol", method="fedu", rounds=2)
    assert all("divergence_before" in client for client in run.metrics[1]["clients"])


# --- nodes that are away --------------------------------------------------------------------------


class SleepsInRoundTwo(FedAvg):
    """Node 3 fails in round 2."""

    def train(self, client):
        if client.id == 3 and client.round == 2:
            raise ClientFailure("asleep")
        return super().train(client)


def test_a_node_that_drops_out_keeps_its_model_and_returns(tmp_path):
    keys = {
        "method.name": "tests.engines.test_gossip:SleepsInRoundTwo",
        "checkpoint.every": 1,
        "checkpoint.keep": 0,
    }
    run = gossip(tmp_path / "a", "star", **keys)
    stored = Checkpoints(run.directory.checkpoints, 0, MemoryStore(run.directory.memories, 0))
    first, second, third = (stored.load(number).server.nodes for number in (1, 2, 3))
    kept = [one_is_other(a, b) for a, b in zip(first, second, strict=True)]
    assert kept == [False, False, False, True, False]
    assert not one_is_other(second[3], third[3])
    assert [failure["client"] for failure in run.metrics[1]["failed"]] == [3]
    assert run.metrics[1]["spectral_gap"] == pytest.approx(0, abs=1e-12)  # one node is out of reach
    assert run.metrics[2]["failed"] == []
    assert run.result["failures"] == 1


def one_is_other(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def test_no_node_mixes_without_the_center_of_a_star(tmp_path):
    keys = {"participation.failure_rate": 0.5, "seed": 3, "checkpoint.every": 1, "checkpoint.keep": 0}
    run = gossip(tmp_path / "a", "star", **keys)
    away = [0 in [failure["client"] for failure in line["failed"]] for line in run.metrics]
    assert any(away)  # by this seed
    for line, center_is_away in zip(run.metrics, away, strict=True):
        assert line["spectral_gap"] == pytest.approx(0, abs=1e-12)
        assert center_is_away or line["consensus_distance"] > 0


def test_few_nodes_per_round(tmp_path):
    run = gossip(tmp_path / "a", "complete", rounds=1, **{"participation.per_round": 2})
    there = [client["client"] for client in run.metrics[0]["clients"]]
    assert len(there) == 2
    models = nodes(run)
    away = [models[node] for node in range(5) if node not in there]
    assert all(one_is_other(model, away[0]) for model in away)  # as they were before round 1
    torch.testing.assert_close(models[there[0]], models[there[1]])  # the two of them agree
    assert not one_is_other(models[there[0]], away[0])


# --- the same bits --------------------------------------------------------------------------------


@pytest.mark.usefixtures("warm_workers")
def test_workers_give_the_same_bits_as_one_process(tmp_path):
    keys = {"objective": "byol", "participation.failure_rate": 0.2}
    one = gossip(tmp_path / "one", "random", **keys)
    two = gossip(tmp_path / "two", "random", **keys, **{"engine.workers": 2})
    for a, b in zip(nodes(one), nodes(two), strict=True):
        assert one_is_other(a, b)
    kept = ("loss", "consensus_distance", "failed")
    assert [[line[key] for key in kept] for line in one.metrics] == [
        [line[key] for key in kept] for line in two.metrics
    ]


def test_a_run_that_is_killed_resumes_to_the_same_bits(tmp_path):
    keys = {"objective.name": "byol", "engine.name": "gossip", "engine.topology": "tree", "rounds": 10}
    keys |= {"checkpoint.every": 2, "data.limit": 200, "participation.per_round": 4}
    words = arguments(**keys)
    whole = fedssl.run(load(None, parse_overrides(words)), out=tmp_path / "whole", quiet=True)
    chance, out, kills = random.Random(0), tmp_path / "killed", 0
    command = [sys.executable, "-m", "fedssl.cli"]
    process = subprocess.Popen([*command, "run", *words, "--out", str(out), "--quiet"])
    while kills < 3:
        wait_for_file(out / "metrics.jsonl", process)
        time.sleep(chance.uniform(0.0, 1.0))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        process = subprocess.Popen([*command, "resume", str(out), "--quiet"])
    assert process.wait() == 0
    assert kills >= 1
    for a, b in zip(nodes(fedssl.Run(out)), nodes(whole), strict=True):
        assert one_is_other(a, b)
    for key in ("loss", "consensus_distance", "spectral_gap"):
        assert [line[key] for line in fedssl.Run(out).metrics] == [line[key] for line in whole.metrics]


# --- what needs a server --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"method": "fedema", "objective": "byol"}, r"fedema needs a server.*method\.scaler"),
        ({"method": "featarc"}, "featarc needs a server"),
        ({"method": "centralized"}, "all images in one place"),
        ({"method": "standalone"}, "standalone shares nothing"),
        ({"aggregation": "l-dawa"}, r"aggregation\.name is for a server"),
        ({"server": {"optimizer": "adam"}}, r"server\.optimizer is for a server"),
        ({"engine.edge_probability": 0.5}, r"topology=random only"),
        ({"engine.topology": "ring"}, "known: complete, cycle, random, star, tree"),
    ],
)
def test_settings_that_need_a_server_are_refused(tmp_path, keys, said):
    with pytest.raises(ConfigError, match=said):
        gossip(tmp_path / "a", **keys)


def test_fedema_with_a_fixed_scaler_needs_no_server(tmp_path):
    run = gossip(tmp_path / "a", objective="byol", rounds=2, method={"name": "fedema", "scaler": 0.5})
    assert all("mu" in client for client in run.metrics[1]["clients"])


def test_private_normalization_layers_are_not_mixed(tmp_path):
    run = gossip(tmp_path / "a", method={"name": "fedavg", "private_norm": True}, rounds=2)
    assert not any("bn" in name for name in nodes(run)[0])
    assert all(not line["failed"] for line in run.metrics)


def test_runs_on_different_graphs_are_different_runs():
    from fedssl.tables.cells import folder

    def named(**engine):
        return folder(load(SMALL, {"engine": engine}))

    cycle = named(name="gossip", topology="cycle")
    assert cycle == named(name="gossip", topology="cycle", workers=2)
    assert len({cycle, named(name="gossip", topology="star"), named(name="local")}) == 3
