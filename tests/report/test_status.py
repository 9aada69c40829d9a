"""`fedssl status`, /health and /metrics, from runs whose numbers are known."""

import json
import os
import urllib.error
import urllib.request

import pytest

from fedssl.cli import main
from fedssl.report import metrics
from fedssl.report.status import status_of
from tests.report.handmade import METRICS, finished, partition, run_dir
from tests.suite.waiting import PATIENCE


def test_the_status_of_a_finished_run(tmp_path, capsys) -> None:
    status = status_of(finished(tmp_path / "run"))
    assert (status.state, status.done, status.rounds, status.knn) == ("finished", 3, 3, 0.75)
    assert status.totals == {"bytes_up": 500, "bytes_down": 1200}
    first, second = status.sites
    assert (first.images, first.rounds, first.last_round, first.failed) == (30, 3, 3, 0)
    assert (second.images, second.rounds, second.failed) == (10, 2, 1)
    assert second.last_failure == "sent NaN in encoder.conv1.weight"
    assert main(["status", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("finished: round 3 of 3, ")
    assert "took" in said.splitlines()[0]
    assert "client 1" in said
    assert main(["status", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sites"][1]["failed"] == 1


def test_runs_that_are_running_silent_or_not_begun(tmp_path) -> None:
    run = run_dir(tmp_path / "run", metrics=METRICS, partition=partition(), rounds=9)
    assert status_of(run).state == "running"
    os.utime(run / "metrics.jsonl", (1.0, 1.0))
    assert status_of(run).state == "silent"
    assert status_of(run_dir(tmp_path / "new", partition=partition())).state == "not begun"
    assert main(["status", str(tmp_path)]) == 1


def test_sites_are_called_by_name(tmp_path) -> None:
    keys = {"engine.name": "flower", "engine.sites": ["berlin", "paris", "rome"], "data.size": 8}
    run = run_dir(tmp_path / "run", metrics=METRICS, **keys)
    found = [(site.name, site.images, site.rounds) for site in status_of(run).sites]
    assert found == [("berlin", 30, 3), ("paris", 10, 2), ("rome", 0, 0)]


def get(server, path, **headers):
    url = f"http://127.0.0.1:{server.server_address[1]}{path}"
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def read_samples(text):
    """A naive second reader of Prometheus' text format."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_health_and_metrics_are_served_to_this_machine_only(tmp_path) -> None:
    keys = {"engine.name": "flower", "engine.sites": ['ber"lin', "paris"], "data.size": 8}
    server = metrics.serve(tmp_path / "run", 0)
    try:
        assert server.server_address[0] == "127.0.0.1"
        assert json.loads(get(server, "/health")[1]) == {"status": "ok", "run": "not begun"}
        assert get(server, "/metrics")[1] == ""
        run_dir(tmp_path / "run", metrics=METRICS, rounds=9, **keys)
        health = json.loads(get(server, "/health")[1])
        assert (health["status"], health["run"], health["round"], health["rounds"]) == ("ok", "running", 3, 9)
        kind, text = get(server, "/metrics")
        assert kind.startswith("text/plain; version=0.0.4")
        samples = read_samples(text)
        assert samples["fedssl_rounds_done"] == 3
        assert samples["fedssl_loss"] == 2.5
        assert samples["fedssl_knn_accuracy"] == 0.75
        assert samples["fedssl_received_bytes_total"] == 500
        written = (tmp_path / "run" / "metrics.jsonl").stat().st_mtime
        assert samples["fedssl_last_round_timestamp_seconds"] == written
        assert samples['fedssl_site_images{site="ber\\"lin"}'] == 30
        assert samples['fedssl_site_failures_total{site="paris"}'] == 1
        declared = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
        assert {name.split("{")[0] for name in samples} == declared
        for path, headers, code in (("/", {}, 404), ("/metrics", {"Host": "evil.example"}, 403)):
            with pytest.raises(urllib.error.HTTPError, match=str(code)):
                get(server, path, **headers)
    finally:
        server.close()
