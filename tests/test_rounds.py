"""Runs that are interrupted by the user, and runs that get more rounds than they were started with."""

import json

import pytest

import fedssl
from fedssl.cli import main
from fedssl.engines.runner import ClientRunner
from fedssl.errors import ConfigError, RunError
from tests.small import digest, small_run

CONSTANT = {"train.schedule": "constant", "method.name": "fedema", "objective.name": "byol"}


class Notes(fedssl.Listener):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def losses(run):
    return [line["loss"] for line in run.metrics]


def test_more_rounds_at_a_constant_rate_are_the_run_that_had_them_from_the_start(tmp_path):
    longer = small_run(tmp_path / "four", rounds=4, **CONSTANT)
    run, said = small_run(tmp_path / "two", rounds=2, **CONSTANT), Notes()
    run = fedssl.resume(run.path, rounds=4, quiet=True, listeners=[said])
    assert digest(run) == digest(longer)
    assert losses(run) == losses(longer)
    assert "the same as 4 rounds from the start" in said.notes[0]
    assert run.result["extended"] == [{"after": 2, "from": 2, "to": 4}]
    assert json.loads((run.path / "result-2.json").read_text())["rounds"] == 2


def test_a_learning_rate_that_depends_on_the_rounds_is_reported(tmp_path):
    run, said = small_run(tmp_path / "run", rounds=2), Notes()
    run = fedssl.resume(run.path, rounds=3, quiet=True, listeners=[said])
    assert run.config.rounds == len(run.metrics) == 3
    # cosine: 0.05 × ½(1 + cos(π (round − 1) / rounds))
    assert "0.025 in round 2, 0.0125 in round 3" in said.notes[0]
    assert "train.schedule=constant" in said.notes[0]


def test_fewer_rounds_than_are_done_are_an_error(tmp_path):
    run = small_run(tmp_path / "run", rounds=2)
    with pytest.raises(ConfigError, match="has done 2 rounds already"):
        fedssl.resume(run.path, rounds=1)
    for file in (run.path / "checkpoints").glob("round-*"):
        file.unlink()
    with pytest.raises(RunError, match="no checkpoint of its last round, 2"):
        fedssl.resume(run.path, rounds=4)
    assert run.result["rounds"] == 2  # nothing was changed


def test_a_stopped_run_can_get_more_rounds(tmp_path):
    class Stop(fedssl.Listener):
        def round(self, line):
            raise fedssl.StopRun("enough")

    run = small_run(tmp_path / "run", rounds=3, listeners=[Stop()])
    run = fedssl.resume(run.path, rounds=2, quiet=True)
    assert (run.result["rounds"], run.result["stopped"]) == (2, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.lr=1"], "train.lr cannot change within a run"),
        (["rounds=many"], "a whole number"),
        (["rounds=0"], "a whole number"),
    ],
)
def test_only_the_number_of_rounds_can_change(words, said, tmp_path, capsys):
    assert main(["resume", str(tmp_path), *words]) == 2
    assert said in capsys.readouterr().err


def test_ctrl_c_keeps_the_last_complete_round(tmp_path, monkeypatch):
    whole = small_run(tmp_path / "whole", rounds=4, **CONSTANT)
    usual = ClientRunner.run

    def interrupted(self, task):
        if (task.round, task.client) == (3, 2):  # clients 0 and 1 have written their memories of round 3
            raise KeyboardInterrupt
        return usual(self, task)

    monkeypatch.setattr(ClientRunner, "run", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"after round 2 of 4; continue: fedssl resume .*run"):
        small_run(tmp_path / "run", rounds=4, **CONSTANT, **{"checkpoint.every": 100})
    monkeypatch.setattr(ClientRunner, "run", usual)
    run, said = fedssl.Run(tmp_path / "run"), Notes()
    assert len(run.metrics) == 2
    run = fedssl.resume(run.path, quiet=True, listeners=[said])
    assert digest(run) == digest(whole)
    assert said.notes == []


def test_a_resume_from_the_start_is_reported(tmp_path, monkeypatch):
    def interrupted(self, task):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ClientRunner, "run", interrupted)
        with pytest.raises(KeyboardInterrupt, match="starts from the beginning"):
            small_run(tmp_path / "run", rounds=1)
    said = Notes()
    run = fedssl.resume(tmp_path / "run", quiet=True, listeners=[said])
    assert "starts again from round 1" in said.notes[0]
    assert len(run.metrics) == 1
