"""The live page of a run."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from fedssl.cli import main
from fedssl.errors import ConfigError, RunError
from fedssl.report.html import watch
from tests.report.handmade import METRICS, entry, partition, result, run_dir
from tests.suite.waiting import PATIENCE, wait_for_exit


@pytest.fixture
def served(tmp_path):
    path = run_dir(tmp_path / "run")
    drawn = threading.Event()

    def images(path):
        drawn.wait(PATIENCE)
        return {"why_not": "nothing to see", "missing": True}

    server = watch.serve(path, 0, images)
    yield path, server, drawn
    drawn.set()
    server.close()


def get(server, place="/document.json", host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=PATIENCE)
    connection.request("GET", place, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def document(server):
    status, text = get(server)
    assert status == 200
    return json.loads(text)["runs"][0]


def test_from_before_the_first_round_to_after_the_end(served):
    path, server, drawn = served
    run = document(server)
    assert (run["status"]["done"], run["status"]["finished"], run["curves"]) == (0, False, [])
    assert run["images"]["why_not"] == watch.PENDING
    (path / "partition.json").write_text(json.dumps(partition()))
    (path / "metrics.jsonl").write_text(json.dumps(METRICS[0]) + "\n" + '{"round": 2, "lo')
    run = document(server)
    assert (run["status"]["done"], len(run["clients"]["rows"])) == (1, 2)
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in METRICS))
    assert document(server)["status"]["done"] == 3
    (path / "result.json").write_text(json.dumps(result(entry("linear", 0.75))))
    run = document(server)
    assert run["status"]["finished"]
    assert run["probes"][0]["accuracy"] == 0.75
    assert run["images"]["why_not"] == watch.DRAWING
    drawn.set()
    server.live._drawing.join(PATIENCE)
    assert document(server)["images"]["why_not"] == "nothing to see"


def test_the_page_only_contacts_its_own_server(served):
    _, server, _ = served
    status, text = get(server, "/")
    assert status == 200
    assert '"live":2.0' in text
    assert "connect-src &#x27;self&#x27;" in text


def test_an_unchanged_run_is_not_read_again(served, monkeypatch):
    _, server, _ = served
    first = server.live.document()
    assert server.live.document() is first
    monkeypatch.setattr(watch, "stamp", lambda path: "changed")
    assert server.live.document() is not first


def test_only_requests_to_this_machine_are_served(served):
    _, server, _ = served
    assert server.server_address[0] == "127.0.0.1"
    port = server.server_address[1]
    assert get(server, host=f"localhost:{port}")[0] == 200
    assert get(server, host=f"evil.example:{port}")[0] == 403
    assert get(server, "/config.toml")[0] == 404
    assert get(server, "/../config.toml")[0] == 404


def test_deleting_the_run_does_not_stop_the_server(served):
    path, server, _ = served
    assert get(server)[0] == 200
    (path / "config.toml").unlink()
    (path / "metrics.jsonl").write_text("")
    assert get(server)[0] == 500
    assert get(server, "/nothing")[0] == 404


def test_a_port_in_use_is_reported(tmp_path, capsys):
    path = run_dir(tmp_path / "run")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RunError, match=f"port {port} .* --port"):
            watch.serve(path, port)
        assert main(["watch", str(path), "--port", str(port)]) == 1
        assert "use another --port" in capsys.readouterr().err


def test_bad_input(tmp_path, capsys):
    with pytest.raises(ConfigError, match="65535"):
        watch.serve(run_dir(tmp_path / "run"), 70000)
    assert main(["watch", str(tmp_path / "none")]) == 1
    assert "not a run" in capsys.readouterr().err


def test_an_interrupt_ends_it_cleanly(tmp_path):
    path = run_dir(tmp_path / "run")
    process = subprocess.Popen(
        [sys.executable, "-m", "fedssl.cli", "watch", str(path), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # Shells start background jobs with interrupts ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert "is shown at http://127.0.0.1:" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert wait_for_exit(process, "the page should end") == 0
    said, errors = process.communicate()
    assert "the page has stopped" in said
    assert "Traceback" not in errors
