"""The lines that a server and its sites print."""

import json

import pytest

pytest.importorskip("flwr")

from tests.engines.flower.grid import FakeGrid, at_sites, run_with
from tests.engines.flower.test_grid import BASE, a_site

import fedssl
from fedssl.engines.flower import client, journal
from fedssl.engines.flower.client import report_round
from fedssl.engines.flower.journal import MARK, VARIABLE, Output, describe, emit
from fedssl.engines.flower.versions import versions
from fedssl.engines.tasks import Outcome
from fedssl.errors import RunError
from fedssl.listener import RunInfo
from fedssl.report.journal import JournalListener
from fedssl.state import Upload

AT_A_SITE = {
    "event": "round",
    "round": 3,
    "rounds": 20,
    "images": 412,
    "seconds": 14.2,
    "loss": 4.1,
    "received": 2_600_000,
    "sent": 1_250,
}


def test_a_round_is_described_in_one_line() -> None:
    assert describe(AT_A_SITE) == "round 3 of 20, 412 images, 14 s, loss 4.1, received 2.6 MB, sent 1.25 KB"
    at_server = {**AT_A_SITE, "sites": 2, "of": 3, "knn": 0.512}
    assert describe(at_server).startswith(
        "round 3 of 20, 2 of 3 sites, 412 images, 14 s, loss 4.1, kNN 51.2%"
    )


def test_events_are_shown_and_flowers_lines_only_on_request(monkeypatch, capsys) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    emit("failed", "warning", who="berlin", reason="too late")
    marked = capsys.readouterr().out.rstrip("\n")
    monkeypatch.setattr(journal, "now", lambda: "2026-01-02T03:04:05")
    read: dict[str, list[str]] = {"plain": [], "debug": [], "json": []}
    outputs = {
        "plain": Output(write=read["plain"].append),
        "debug": Output(debug=True, write=read["debug"].append),
        "json": Output(as_json=True, write=read["json"].append),
    }
    for output in outputs.values():
        output("hello")
        output.line("\x1b[92mINFO : \x1b[0m Flower says something")
        output.line(f"12:00 {marked}\n")
        output.line(f"{MARK}not json")
    assert read["plain"][0] == "2026-01-02 03:04:05  INFO     hello"
    assert read["plain"][1].endswith("  WARNING  berlin left out: too late")
    assert len(read["plain"]) == 2
    assert any("Flower says something" in line for line in read["debug"])
    events = [json.loads(line) for line in read["json"]]
    assert [event["event"] for event in events] == ["note", "failed"]
    assert (events[1]["who"], events[1]["level"]) == ("berlin", "warning")


def test_a_site_names_images_that_cannot_be_read_and_the_server_counts_them(tmp_path, caplog) -> None:
    from PIL import Image

    def fill(own):
        for number in range(20):
            Image.new("L", (8, 8), number).save(own / f"{number:02}.png")
        (own / "broken.png").write_bytes(b"no image")

    config = at_sites(BASE, ["site-0", "site-1", "site-2"], rounds=2)
    caplog.set_level("INFO")
    run_with(FakeGrid(a_site(tmp_path, fill)), config, tmp_path / "grid")
    named = [record.message for record in caplog.records if "broken.png" in record.message]
    assert len(named) == 1  # once for the run, not in each round
    for line in fedssl.Run(tmp_path / "grid").metrics:
        counted = {each["client"]: each.get("unreadable") for each in line["clients"]}
        assert counted == {0: None, 1: 1, 2: None}


def test_the_server_reports_rounds_and_failures_by_the_names_of_sites(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    listener = JournalListener()
    config = at_sites(BASE, ["berlin", "paris"], rounds=5)
    listener.started(
        RunInfo(
            config=config,
            path=tmp_path,
            federation=None,
            earth_movers_distance=None,
            encoder_parameters=10,
            shared_parameters=1234,
            device="cpu",
            start=2,
            warnings=("careful",),
        )
    )
    line = {
        "round": 3,
        "seconds": 2.0,
        "loss": 1.5,
        "bytes_up": 2000,
        "bytes_down": 4000,
        "clients": [{"client": 1, "images": 30, "unreadable": 1}],
        "failed": [{"client": 0, "reason": "too late"}],
    }
    listener.round(line)
    listener.round({**line, "round": 4})
    shown: list[str] = []
    output = Output(write=shown.append)
    for line in capsys.readouterr().out.splitlines():
        output.line(line)
    text = "\n".join(shown)
    assert "WARNING  careful" in text
    assert "2 sites (berlin, paris), 1,234 numbers shared per site and round, resumed after round 2" in text
    assert "round 3 of 5, 1 of 2 sites, 30 images, 2.0 s, loss 1.5, received 2 KB, sent 4 KB" in text
    assert "berlin left out: too late" in text
    assert text.count("paris: 1 image cannot be read") == 1


def test_a_round_whose_clients_withhold_their_numbers(monkeypatch, capsys) -> None:
    """With privacy settings the server does not learn numbers of images, and sites send no loss."""
    monkeypatch.setenv(VARIABLE, "1")
    clients = [{"client": 0, "seconds": 1.0}, {"client": 1, "seconds": 2.0}]
    JournalListener().round({"round": 3, "seconds": 2.0, "clients": clients, "failed": []})
    upload = Upload(0, {}, 1)
    text = {"round": 3, "config": {"rounds": 5, "privacy": {"mode": "none", "secure": True}}}
    report_round(text, Outcome(0, upload, seconds=2.0), 2000, 4000)
    shown: list[str] = []
    output = Output(write=shown.append)
    for line in capsys.readouterr().out.splitlines():
        output.line(line)
    assert shown[0].endswith("round 3 of 0, 2 of 0 sites, 2.0 s")
    assert shown[1].endswith("round 3 of 5, 2.0 s, received 2 KB, sent 4 KB")


@pytest.mark.parametrize("name", ["fedssl", "PyTorch", "config schema"])
def test_another_version_is_refused_and_both_are_named(name) -> None:
    client.check_versions(versions())
    client.check_versions({})  # a server of before
    with pytest.raises(RunError, match=f"this site has {name} .*the server has 0.0.1: install the same"):
        client.check_versions({**versions(), name: "0.0.1"})


def test_a_site_with_another_version_is_excluded(tmp_path, monkeypatch) -> None:
    """Otherwise it would train, and its numbers would differ."""
    from tests.engines.flower.test_grid import failures, site_nodes

    from fedssl.config import load
    from fedssl.engines.flower import server

    monkeypatch.setattr(server, "versions", lambda: {**versions(), "PyTorch": "1.0.0"})
    config = at_sites(BASE, ["site-0", "site-1", "site-2"], rounds=1)
    with pytest.raises(RunError, match=r"PyTorch .*the server has 1\.0\.0"):
        run_with(FakeGrid(site_nodes(tmp_path, load(BASE))), config, tmp_path / "grid")
    assert not failures(tmp_path / "grid")
