"""Clients of a wave share all threads: the plan by hand, and the same bits on every engine."""

import random
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from pydantic import PrivateAttr
from tests.small import arguments, digest, small_run
from tests.suite.waiting import cpu_seconds, wait_until

import fedssl
from fedssl.config import load, parse_overrides
from fedssl.engines.local import InProcess
from fedssl.engines.loop import draw_clients
from fedssl.engines.schedule import Slot, makespan, schedule, split_into_waves
from fedssl.engines.tasks import Task
from fedssl.engines.workers import Workers
from fedssl.evaluation.drift import local_models
from fedssl.experiment import with_machine_defaults
from fedssl.methods.fedavg import FedAvg
from fedssl.state import Broadcast, layer_distances
from fedssl.threads import with_threads


@pytest.mark.parametrize(
    ("images", "threads", "wave", "plan"),
    [
        # Equal clients in pairs; the one that makes their number odd has both cores.
        ([9], 1, 2, [2]),
        ([9, 9], 1, 2, [1, 1]),
        ([9, 9, 9], 1, 2, [2, 1, 1]),
        ([9] * 5, 1, 2, [2, 1, 1, 1, 1]),
        ([9] * 6, 1, 2, [1] * 6),
        # Four at once on eight cores: two beyond them have four each.
        ([9] * 6, 2, 4, [4, 4, 2, 2, 2, 2]),
        # Three cannot share four threads evenly, but two and one can.
        ([9] * 7, 1, 4, [2, 2, 4, 1, 1, 1, 1]),
        # A client that others would have to wait for uses both cores, whatever its position.
        ([10, 900, 10], 1, 2, [1, 2, 1]),
        # At a pace of 1.84: 184 both at once, 110 one after the other; then 184 against 190.
        ([100, 10], 1, 2, [2, 2]),
        ([100, 90], 1, 2, [1, 1]),
        # An odd number that is nearly even: 60 next to 30 + 29 takes 110, 60 before 30 next to 29 takes 115.
        ([30, 60, 29], 1, 2, [1, 1, 1]),
        # A wave of one: everybody has the same.
        ([30, 20, 900], 3, 1, [3, 3, 3]),
        ([], 1, 2, []),
    ],
)
def test_threads_by_hand(images, threads, wave, plan):
    assert [place.threads for place in schedule(images, threads, wave)] == plan


def test_large_clients_start_first():
    assert split_into_waves([500, 7, 1000, 900, 500], 1, 2) == ([], [2, 3, 0, 4, 1])
    assert split_into_waves([500, 7, 3000, 500], 1, 2) == ([[2]], [0, 3, 1])
    assert schedule([500, 7, 3000, 500], 1, 2) == [Slot(1, 1), Slot(1, 3), Slot(2, 0), Slot(1, 2)]


def test_few_uploads_wait_in_memory():
    """Uploads wait in memory for those of earlier clients, but never more than a few waves of them."""
    images = list(range(100))  # the last is the largest
    turns = [place.turn for place in schedule(images, 1, 2)]
    assert sorted(turns) == list(range(100))
    assert max(abs(turn - client) for client, turn in enumerate(turns)) < 16


def test_no_plan_is_slower_than_one_client_after_the_other_with_all_threads():
    chance = random.Random(0)
    for _ in range(200):
        images = [chance.choice([chance.randint(1, 1000), 100]) for _ in range(chance.randint(1, 12))]
        alone, pairs = split_into_waves(images, 1, 2)
        seconds = sum(images[client] for (client,) in alone)
        seconds += 1.84 * makespan([images[client] for client in pairs], 2)
        assert seconds <= sum(images) * 1.001


def engine(cores, **keys):
    found = load({}, {f"engine.{key}": value for key, value in keys.items()}).engine.with_machine_defaults(
        cores
    )
    return found.threads, found.wave, found.all_threads


def test_threads_and_wave_are_written_to_the_config():
    assert engine(2) == (2, 1, 2)
    assert engine(2, workers=2) == (1, 2, 2)
    assert engine(8, workers=2) == (4, 2, 8)
    # A configured number of threads holds for all clients, whatever the number of workers.
    assert engine(2, workers=2, threads=1) == (1, 1, 1)
    assert engine(2, workers=2, threads=1, wave=2) == (1, 2, 2)
    # Never more threads than cores.
    assert engine(2, workers=4) == (1, 2, 2)
    assert engine(1, workers=2) == (1, 1, 1)
    # Ray gives every client the same.
    assert engine(2, workers=2, name="flower") == (1, 1, 1)
    config = with_machine_defaults(load({}, {"engine.workers": 2}))
    assert with_machine_defaults(config) == config


@pytest.mark.parametrize(
    ("asked", "overshoot", "processes"), [(1, 0.0, 1), (1, 1.0, 2), (2, 0.0, 2), (3, 0.0, 3)]
)
def test_no_more_workers_than_a_round_has_clients(monkeypatch, asked, overshoot, processes):
    """A client that trains alone does so in this process, without copying its tensors."""
    keys = {"engine.workers": 3, "participation.per_round": asked, "participation.overshoot": overshoot}
    config, federation = load({}, keys), SimpleNamespace(clients=10)
    memories = SimpleNamespace(folder="memories")
    runner = SimpleNamespace(config=config, federation=federation, memories=memories)
    monkeypatch.setattr("fedssl.engines.workers.Workers", lambda *given: given[-1])
    clients = config.engine.clients(config, runner, federation)
    assert clients == processes if processes > 1 else isinstance(clients, InProcess)


# --- the same bits ---------------------------------------------------------------------------------------

# Of a kind whose results depend on the number of threads (see below).
WIDE = {"model.width": 16, "rounds": 2}
SHARED = {**WIDE, "engine.threads": 1, "engine.wave": 2}


class SaysThreads(FedAvg):
    """FedAvg whose clients log their number of threads."""

    _log: dict[str, float] = PrivateAttr(default_factory=dict)

    def receive(self, client, broadcast, memory):
        self._log = super().receive(client, broadcast, memory)
        return self._log

    def train(self, client):
        training = super().train(client)
        self._log["threads"] = torch.get_num_threads()
        return training


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("workers", [1, 2])
def test_clients_train_with_the_threads_of_the_plan(tmp_path, workers):
    method = {"method.name": "tests.engines.test_schedule:SaysThreads", "engine.workers": workers}
    before = torch.get_num_threads()
    run = small_run(tmp_path / "a", rounds=2, **{"engine.threads": 1, "engine.wave": 2}, **method)
    for line in run.metrics:
        assert [client["threads"] for client in line["clients"]] == [2, 1, 1, 1, 1]
    same = small_run(tmp_path / "b", rounds=1, **{"engine.threads": 1}, **method)
    assert [client["threads"] for client in same.metrics[0]["clients"]] == [1] * 5
    assert torch.get_num_threads() == before


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize(("clients", "workers"), [(3, 3), (5, 2)])
def test_workers_give_the_same_bits_as_one_process(tmp_path, clients, workers):
    partition = {"partition.clients": clients, "partition.classes": 4}
    keys = {"objective": "byol", "method": "fedema", **partition, **SHARED}
    one = small_run(tmp_path / "one", **keys)
    several = small_run(tmp_path / "several", **keys, **{"engine.workers": workers})
    assert digest(one) == digest(several)
    assert [line["loss"] for line in one.metrics] == [line["loss"] for line in several.metrics]


def test_the_number_of_threads_changes_bits(tmp_path):
    """Otherwise the tests above would not notice if a client had the threads of another."""
    shared = small_run(tmp_path / "shared", **SHARED)
    assert digest(shared) != digest(small_run(tmp_path / "own", **{**SHARED, "engine.wave": 1}))


@pytest.mark.usefixtures("warm_workers")
def test_a_default_run_can_be_repeated_in_one_process(tmp_path, monkeypatch):
    """The settings chosen for two workers are in config.toml, and bits depend on nothing else."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    two = small_run(tmp_path / "two", **WIDE, **{"engine.workers": 2, "engine.threads": 0})
    assert (two.config.engine.threads, two.config.engine.wave) == (1, 2)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    again = load(tmp_path / "two" / "config.toml", {"engine.workers": 1})
    assert digest(fedssl.run(again, out=tmp_path / "one", quiet=True)) == digest(two)


def test_a_killed_run_resumes_to_the_same_bits(tmp_path):
    keys = {**SHARED, "objective.name": "byol", "method.name": "fedema", "rounds": 12, "checkpoint.every": 1}
    words, out = arguments(**keys, **{"engine.workers": 2}), tmp_path / "killed"
    whole = fedssl.run(load(None, parse_overrides(arguments(**keys))), out=tmp_path / "whole", quiet=True)
    command = [sys.executable, "-m", "fedssl.cli", "run", *words, "--out", str(out), "--quiet"]
    process = subprocess.Popen(command)
    metrics = out / "metrics.jsonl"
    wait_until(
        lambda: metrics.exists() and metrics.read_text().count("\n") >= 2,
        "two rounds should end",
        running=[process],
        progress=lambda: cpu_seconds(process),
    )
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "result.json").exists()
    fedssl.resume(out, quiet=True)
    assert digest(out) == digest(whole)


@pytest.mark.usefixtures("warm_workers")
def test_spare_clients_do_not_affect_the_plan(tmp_path):
    """It is only known after a failure which of them is needed."""
    chance = {"participation.per_round": 3, "participation.overshoot": 0.5, "participation.failure_rate": 0.3}
    keys = {**SHARED, **chance, "rounds": 4, "method.name": "tests.engines.test_schedule:SaysThreads"}
    one = small_run(tmp_path / "one", **keys)
    two = small_run(tmp_path / "two", **keys, **{"engine.workers": 2})
    assert digest(one) == digest(two)
    who = [[(client["client"], client["threads"]) for client in line["clients"]] for line in one.metrics]
    assert who == [
        [(client["client"], client["threads"]) for client in line["clients"]] for line in two.metrics
    ]
    assert any(line["failed"] for line in one.metrics)
    config = one.config
    for line, found in zip(one.metrics, who, strict=True):
        _, spares = draw_clients(config.participation, 5, config.seed, line["round"])
        assert all(threads == 1 for client, threads in found if client in spares)


@pytest.mark.usefixtures("warm_workers")
def test_gossip_nodes_share_threads_like_clients(tmp_path):
    keys = {**SHARED, "engine.name": "gossip"}
    one = small_run(tmp_path / "one", **keys)
    assert digest(one) == digest(small_run(tmp_path / "two", **keys, **{"engine.workers": 2}))


def test_a_repeated_round_uses_the_same_threads(tmp_path):
    """So that drift is measured for the models that the clients uploaded."""
    run = small_run(tmp_path / "a", **{**SHARED, "rounds": 1})
    found = local_models(run.path)
    first = found.finished.models.runner.first_server().model
    for row, threads in zip(run.metrics[0]["clients"], [2, 1, 1, 1, 1], strict=True):
        with with_threads(threads):  # norms, too, depend on them
            apart = layer_distances(first, found.local[row["client"]], found.layers)
        assert sum(apart.values()) == row["drift"]


# --- who trains at the same time -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("running", "threads", "begins"),
    [([], 1, True), ([1], 1, True), ([1, 1], 1, False), ([1], 2, False), ([], 2, True), ([2], 1, False)],
)
def test_no_more_threads_than_cores_are_used(running, threads, begins):
    workers = Workers.__new__(Workers)
    workers.config = with_machine_defaults(
        load({}, {"engine.workers": 2, "engine.threads": 1, "engine.wave": 2})
    )
    tasks = [Task(1, 0, Broadcast(), threads=each) for each in running]
    workers.workers = [SimpleNamespace(task=task) for task in [*tasks, None, None][:2]]
    assert (workers._idle_for(Task(1, 1, Broadcast(), threads=threads)) is not None) == begins
