"""Methods that are bit-identical to others at the extremes of their options, in whole runs."""

import pytest
import torch
from tests.small import digest, small_run

from fedssl.evaluation.loaded import load_run

BYOL = {"objective": "byol", "rounds": 3}


@pytest.fixture(scope="module")
def fedbyol(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("runs") / "fedbyol", **BYOL)


@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedema", "scaler": 0.0},
        {"name": "fedema", "tau": 0.0},
        {"name": "fedema", "tau": 0.0, "divergence": "reference-code"},
        {"name": "constant-mu", "mu_encoder": 0.0, "mu_predictor": 0.0},
        {"name": "fedu", "threshold": 1e9},
    ],
    ids=str,
)
def test_with_mu_zero_it_is_fedbyol(tmp_path, fedbyol, method):
    assert digest(small_run(tmp_path / "a", method=method, **BYOL)) == digest(fedbyol)


def test_a_small_mu_changes_the_model(tmp_path, fedbyol):
    assert digest(small_run(tmp_path / "a", method={"name": "fedema", "tau": 0.01}, **BYOL)) != digest(
        fedbyol
    )


def client_parameters(run, client):
    finished = load_run(run.directory, {})
    finished.models.load_client(finished.server, finished.memory_rounds, client)
    model = finished.models.runner.model
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def test_mu_of_one_is_standalone(tmp_path):
    """Parameters, including the target's, equal those of clients without communication."""
    one = {"name": "constant-mu", "mu_encoder": 1.0, "mu_predictor": 1.0}
    alone = small_run(tmp_path / "alone", method="standalone", **BYOL)
    kept = small_run(tmp_path / "kept", method=one, **BYOL)
    for client in range(5):
        expected, found = client_parameters(alone, client), client_parameters(kept, client)
        assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_lambda_is_computed_once_and_survives_a_restart(tmp_path):
    from tests.small import SMALL

    from fedssl import experiment
    from fedssl.config import load
    from fedssl.listener import Listener

    class Stop(Exception):
        pass

    class StopAfterTwo(Listener):
        def round(self, line):
            if line["round"] == 3:
                raise Stop

    keys = {"objective": "byol", "method": "fedema", "rounds": 5, "checkpoint.every": 1}
    with pytest.raises(Stop):
        experiment.run(load(SMALL, keys), tmp_path / "a", StopAfterTwo())
    lines = experiment.resume(tmp_path / "a", Listener()).metrics()
    for client in range(5):
        scalers = {line["clients"][client]["lambda"] for line in lines[1:]}
        assert len(scalers) == 1
        first = lines[1]["clients"][client]
        assert first["mu"] == pytest.approx(0.7)
        assert first["lambda"] == pytest.approx(0.7 / first["divergence_before"])


def test_a_client_absent_in_the_last_round_starts_from_the_global_model(tmp_path):
    run = small_run(
        tmp_path / "a",
        objective="byol",
        method="fedema",
        rounds=8,
        **{"participation.per_round": 2, "train.epochs": 0.5},
    )
    there: set[int] = set()
    known: set[int] = set()
    mixed = fresh = 0
    for line in run.metrics:
        now = {client["client"]: client for client in line["clients"]}
        for client, numbers in now.items():
            assert ("mu" in numbers) == (client in there and client in known)
            mixed += "mu" in numbers
            fresh += "mu" not in numbers
        there, known = set(now), known | set(now)
    assert mixed
    assert fresh


@pytest.mark.parametrize("objective", ["byol", "moco-v2"])
def test_targets_and_queues_stay_on_the_client(tmp_path, objective):
    queue = {"objective.queue": 32} if objective == "moco-v2" else {}
    run = small_run(tmp_path / "a", objective=objective, rounds=2, **queue)
    finished = load_run(run.directory, {})
    assert not [name for name in finished.server.model if name.startswith(("target.", "queue."))]
    runner, memories = finished.models.runner, finished.models.runner.memories
    kept = [memories.load(client, finished.memory_rounds[client]).state for client in range(5)]
    private = [name for name in runner.initial if name.startswith(("target.", "queue."))]
    assert all(set(private) == set(state) for state in kept)
    weights = [name for name in private if name.endswith("weight")] + [
        n for n in private if n == "queue.keys"
    ]
    for name in weights:
        assert not torch.equal(kept[0][name], kept[1][name])  # each client has its own
        assert not torch.equal(kept[0][name], runner.initial[name])  # and it has learned
