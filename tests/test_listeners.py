"""Callbacks of a run: their arguments, and how they stop it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fedssl
from fedssl.experiment import Experiment

SMALL: dict[str, Any] = {
    "data": {"name": "digits", "limit": 100},
    "model": {"width": 4, "projector_hidden": 16},
    "train": {"epochs": 0.5},
    "rounds": 4,
    "probe": {"every": 0, "protocol": "none"},
    "engine": {"threads": 1},
    "log": {"tensorboard": False},
}


class Diary(fedssl.Listener):
    """Records its calls, and stops after a round."""

    def __init__(self, last: int = 99) -> None:
        self.calls: list[Any] = []
        self.last = last

    def started(self, info: Any) -> None:
        self.calls.append(("started", info.start))

    def round(self, line: dict[str, Any]) -> None:
        self.calls.append(("round", line["round"]))
        if line["round"] == self.last:
            raise fedssl.StopRun("enough")

    def finished(self, result: dict[str, Any], path: Path) -> None:
        self.calls.append(("finished", result["rounds"], path.name))

    def close(self) -> None:
        self.calls.append("close")


def run(path: Path, *listeners: fedssl.Listener, **keys: Any) -> fedssl.Run:
    return fedssl.run({**SMALL, **keys}, out=path, quiet=True, listeners=listeners)


def test_a_listener_is_called_in_order(tmp_path: Path) -> None:
    diary = Diary()
    run(tmp_path / "run", diary, rounds=2)
    assert diary.calls == [("started", 0), ("round", 1), ("round", 2), ("finished", 2, "run"), "close"]


def test_a_stopped_run_has_the_encoder_of_its_last_round(tmp_path: Path) -> None:
    """Rounds do not depend on how many follow, except for the schedule: it is constant here."""
    train = {"epochs": 0.5, "schedule": "constant"}
    first, second = Diary(last=2), Diary()
    stopped = run(tmp_path / "stopped", first, second, train=train)
    short = run(tmp_path / "short", train=train, rounds=2)
    assert second.calls == [("started", 0), ("round", 1), ("round", 2), ("finished", 2, "stopped"), "close"]
    assert [(each.result["rounds"], each.result["stopped"]) for each in (stopped, short)] == [
        (2, "enough"),
        (2, ""),
    ]
    files = [each.path / "encoder.safetensors" for each in (stopped, short)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert stopped.metrics[-1]["stopped"] == "enough"
    assert "feature_std" in stopped.metrics[-1]["probe"]  # every run reports a possible collapse
    assert stopped.probe("knn")["accuracy"] == short.probe("knn")["accuracy"]


def test_a_stopped_run_stays_stopped_when_it_is_resumed(tmp_path: Path) -> None:
    stopped = run(tmp_path / "run", Diary(last=2))
    before = (stopped.path / "encoder.safetensors").read_bytes()
    fedssl.resume(stopped.path, quiet=True)
    assert len(stopped.metrics) == 2
    assert (stopped.path / "encoder.safetensors").read_bytes() == before


def test_a_run_killed_while_finishing_is_not_trained_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: Experiment) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Experiment, "_finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "run", Diary(last=2))
    resumed = fedssl.resume(tmp_path / "run", quiet=True)
    assert (resumed.result["rounds"], resumed.result["stopped"]) == (2, "enough")
    assert len(resumed.metrics) == 2


def test_an_error_of_a_listener_ends_the_run_and_closes_all(tmp_path: Path) -> None:
    class Broken(fedssl.Listener):
        def round(self, line: dict[str, Any]) -> None:
            raise ValueError("a mistake")

    diary = Diary()
    with pytest.raises(ValueError, match="a mistake"):
        run(tmp_path / "run", Broken(), diary)
    assert diary.calls == [("started", 0), "close"]
    assert fedssl.resume(tmp_path / "run", quiet=True).result["rounds"] == 4
