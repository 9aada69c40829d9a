"""Trackers get every number of a run, and a resumed run continues its tracker run."""

import pytest

import fedssl
from fedssl.errors import ConfigError
from fedssl.report import trackers
from tests.small import SMALL

LOGGED = {**SMALL, "log": {"tensorboard": False, "mlflow": "digits"}}


@pytest.fixture
def client(tmp_path, monkeypatch):
    """The real MLflow, on a local folder."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return mlflow.MlflowClient()


def test_mlflow_gets_config_curves_probes_and_encoder(tmp_path, client):
    probe = {"every": 1, "protocol": "knn"}
    run = fedssl.run(LOGGED, out=tmp_path / "run", quiet=True, rounds=2, probe=probe)
    experiment = client.get_experiment_by_name("digits")
    (logged,) = client.search_runs([experiment.experiment_id])
    assert logged.info.run_name == "run"
    assert logged.info.status == "FINISHED"
    assert logged.data.params["objective.name"] == "simclr"
    assert logged.data.params["rounds"] == "2"
    for name, key in (("loss", "loss"), ("probe/knn", "knn")):
        curve = sorted(client.get_metric_history(logged.info.run_id, name), key=lambda point: point.step)
        lines = [line if key == "loss" else line["probe"] for line in run.metrics]
        assert [(point.step, point.value) for point in curve] == [(1, lines[0][key]), (2, lines[1][key])]
    assert logged.data.metrics["knn/accuracy"] == run.result["probes"][0]["accuracy"]
    assert logged.data.metrics["knn/untrained"] == run.result["probes"][0]["untrained"]
    files = {artifact.path for artifact in client.list_artifacts(logged.info.run_id)}
    assert {"config.toml", "result.json", "encoder.safetensors"} <= files


def test_a_resumed_run_continues_its_mlflow_run(tmp_path, client):
    class Fail(fedssl.Listener):
        def round(self, line):
            if line["round"] == 2:
                raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fedssl.run(
            LOGGED, out=tmp_path / "run", quiet=True, rounds=2, checkpoint={"every": 1}, listeners=[Fail()]
        )
    experiment = client.get_experiment_by_name("digits").experiment_id
    assert [run.info.status for run in client.search_runs([experiment])] == ["KILLED"]
    fedssl.resume(tmp_path / "run", quiet=True)
    (logged,) = client.search_runs([experiment])
    assert logged.info.status == "FINISHED"
    assert {point.step for point in client.get_metric_history(logged.info.run_id, "loss")} == {1, 2}


def test_a_tracker_that_is_not_installed_is_an_error_that_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(trackers, "installed", lambda package: False)
    with pytest.raises(ConfigError, match=r"pip install 'fedssl\[mlflow\]'"):
        fedssl.run(LOGGED, out=tmp_path / "run", quiet=True)
