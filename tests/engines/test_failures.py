"""A client that fails is left out, named and counted; all others are aggregated."""

import os
import signal
from pathlib import Path

import pytest
import torch
from tests.small import SMALL, digest, small_run

import fedssl
from fedssl.errors import ConfigError, FedsslError, RunError
from fedssl.methods.client import ClientFailure
from fedssl.methods.fedavg import FedAvg
from fedssl.methods.fedema import FedEMA
from fedssl.methods.training import Training


class Troubled(FedAvg):
    """Client 1 sends NaN, client 2 raises, client 3 sends a wrong shape; the others work."""

    def train(self, client):
        if client.id == 2:
            raise ValueError("camera is broken")
        training = super().train(client)
        with torch.no_grad():
            if client.id == 1:
                next(client.model.parameters()).fill_(float("nan"))
        return training


def test_bad_clients_are_left_out_and_named(tmp_path):
    run = small_run(tmp_path / "a", **{"method.name": "tests.engines.test_failures:Troubled"})
    for line in run.metrics:
        assert [client["client"] for client in line["clients"]] == [0, 3, 4]
        reasons = {failure["client"]: failure["reason"] for failure in line["failed"]}
        assert "is not finite" in reasons[1]
        assert reasons[2] == "ValueError: camera is broken"
    assert run.result["failures"] == 6


class Absent(FedAvg):
    """Client 4 fails before it has done anything."""

    def train(self, client):
        if client.id == 4:
            raise ClientFailure("asleep")
        return super().train(client)


class Broken(FedAvg):
    """Client 4 trains and sends an invalid upload."""

    def train(self, client):
        training = super().train(client)
        if client.id == 4:
            with torch.no_grad():
                next(client.model.parameters()).fill_(float("inf"))
        return training


def test_a_refused_upload_leaves_no_trace_in_the_global_model(tmp_path):
    absent = small_run(
        tmp_path / "a", objective="byol", **{"method.name": "tests.engines.test_failures:Absent"}
    )
    broken = small_run(
        tmp_path / "b", objective="byol", **{"method.name": "tests.engines.test_failures:Broken"}
    )
    assert digest(absent) == digest(broken)


class NoMemoryOfNaN(FedAvg):
    """Client 1's target network and upload contain NaN in round 1; later they are valid again."""

    def train(self, client):
        training = super().train(client)
        if client.id == 1 and client.round == 1:
            with torch.no_grad():
                for value in client.model.parameters():
                    value.fill_(float("nan"))
        return training


def test_the_memory_of_a_refused_upload_is_not_kept(tmp_path):
    run = small_run(
        tmp_path / "a",
        objective="byol",
        rounds=2,
        **{"method.name": "tests.engines.test_failures:NoMemoryOfNaN"},
    )
    first, second = run.metrics
    assert [failure["client"] for failure in first["failed"]] == [1]
    assert second["failed"] == []


class Nothing(FedAvg):
    """Every client fails."""

    def train(self, client):
        raise ClientFailure("no power")


def test_too_few_uploads_stop_the_run_which_can_be_resumed(tmp_path):
    with pytest.raises(RunError, match=r"round 1: 0 uploads.*min_clients is 1.*client 0: no power"):
        small_run(tmp_path / "a", **{"method.name": "tests.engines.test_failures:Nothing"})
    assert (tmp_path / "a" / "config.toml").exists()


def test_min_clients_is_enforced(tmp_path):
    with pytest.raises(RunError, match=r"3 uploads, but participation\.min_clients is 4"):
        small_run(
            tmp_path / "a",
            **{"method.name": "tests.engines.test_failures:Troubled", "participation.min_clients": 4},
        )


def test_a_hundred_clients_of_which_thirty_percent_fail(tmp_path):
    run = small_run_iid(tmp_path)
    failed = [failure for line in run.metrics for failure in line["failed"]]
    assert 0.2 < len(failed) / 200 < 0.4  # 200 draws of 0.3: ± 3 standard deviations
    for line in run.metrics:
        named = [client["client"] for client in line["clients"]] + [f["client"] for f in line["failed"]]
        assert sorted(named) == list(range(100))
    assert all("simulated failure" in failure["reason"] for failure in failed)


def small_run_iid(tmp_path):
    settings = {
        **SMALL,
        "partition": {"scheme": "iid", "clients": 100},
        "data": {"name": "digits", "limit": 400},
    }
    keys = {"participation.failure_rate": 0.3, "train.batch_size": 4, "rounds": 2}
    return fedssl.run(settings, out=tmp_path / "hundred", quiet=True, **keys)


class Slow(FedAvg):
    """Client 0 is slow."""

    def train(self, client):
        if client.id == 0:
            client.deadline = 0.0
        return super().train(client)


def test_a_late_client_is_left_out(tmp_path):
    run = small_run(tmp_path / "a", rounds=1, **{"method.name": "tests.engines.test_failures:Slow"})
    assert [failure["reason"] for failure in run.metrics[0]["failed"]] == [
        "timed out: not finished within participation.timeout"
    ]


class Dies(FedAvg):
    """The process that trains client 2 exits without an error."""

    def train(self, client) -> Training:
        if client.id == 2:
            os._exit(3)
        return super().train(client)


@pytest.mark.usefixtures("warm_workers")
def test_a_worker_that_dies_costs_one_client_and_is_replaced(tmp_path):
    name = {"method.name": "tests.engines.test_failures:Dies", "engine.workers": 2}
    run = small_run(tmp_path / "a", rounds=2, **name)
    for line in run.metrics:
        assert [failure["client"] for failure in line["failed"]] == [2]
        assert "exit code 3" in line["failed"][0]["reason"]
        assert len(line["clients"]) == 4


class KilledOnce(FedEMA):
    """The process that trains client 2 in round 2 is killed, as the system does when memory runs out."""

    def train(self, client) -> Training:
        done = Path(os.environ["KILLED_ONCE"])
        if client.id == 2 and client.round == 2 and not done.exists():
            done.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().train(client)


@pytest.mark.usefixtures("warm_workers")
def test_a_client_whose_worker_is_killed_once_trains_again_to_the_same_bits(tmp_path, monkeypatch, caplog):
    keys = {"method.name": "tests.engines.test_failures:KilledOnce", "objective": "byol", "rounds": 2}
    monkeypatch.setenv("KILLED_ONCE", str(tmp_path / "killed"))
    killed = small_run(tmp_path / "a", **keys, **{"engine.workers": 2})
    assert (tmp_path / "killed").exists()
    whole = small_run(tmp_path / "b", **keys)
    assert digest(killed) == digest(whole)
    assert [line["failed"] for line in killed.metrics] == [[], []]
    assert "client 2: its worker process ended (exit code -9); it trains again" in caplog.text


def test_one_image_clients_train(tmp_path):
    settings = {
        **SMALL,
        "data": {"name": "digits", "limit": 10},
        "partition": {"scheme": "iid", "clients": 10},
    }
    for objective in ("simclr", "byol", "barlow-twins"):
        run = fedssl.run(settings, out=tmp_path / objective, quiet=True, objective=objective, rounds=1)
        assert run.metrics[0]["failed"] == []
        assert len(run.metrics[0]["clients"]) == 10


def test_a_run_does_not_overwrite_another(tmp_path):
    small_run(tmp_path / "a", rounds=1)
    before = digest(tmp_path / "a")
    with pytest.raises(RunError, match="contains a run already"):
        small_run(tmp_path / "a", rounds=1, seed=5)
    assert digest(tmp_path / "a") == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": {"name": "folder", "root": "nowhere"}},
        {"device": "cuda:99"},
        {"engine": {"name": "gossip"}, "method": "standalone"},  # found out when everything else is there
    ],
)
def test_a_run_that_cannot_start_leaves_no_folder(tmp_path, wrong):
    for _ in range(2):
        with pytest.raises(FedsslError) as error:
            fedssl.run({**SMALL, **wrong}, out=tmp_path / "a", quiet=True)
        assert "contains a run already" not in str(error.value)
        assert not (tmp_path / "a").exists()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine.txt").touch()
    with pytest.raises(FedsslError):
        fedssl.run({**SMALL, **wrong}, out=tmp_path / "a", quiet=True)
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["mine.txt"]


def test_a_run_that_fails_later_keeps_its_folder(tmp_path, monkeypatch):
    def gone(self, client):
        if client.round == 2:
            raise ConfigError("no longer there")
        return original(self, client)

    original = FedAvg.train
    monkeypatch.setattr(FedAvg, "train", gone)
    with pytest.raises(ConfigError):
        small_run(tmp_path / "a", rounds=2)
    assert (tmp_path / "a" / "config.toml").exists()
    monkeypatch.undo()
    assert len(fedssl.resume(tmp_path / "a", quiet=True).metrics) == 2
