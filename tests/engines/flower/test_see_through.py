"""A run that Flower ends although nothing in it failed is restarted; any other end is reported."""

import pytest

from fedssl.engines.flower import launch
from fedssl.errors import RunError


class Home:
    def __init__(self, folder):
        self.folder = folder


def through(tmp_path, monkeypatch, ends, error=""):
    """The status with which Flower ends successive runs; None: with a result."""
    begun, told, home = [], [], Home(tmp_path)

    def start(home, directory):
        begun.append(len(begun))
        if error:
            (tmp_path / "error").write_text(error)
        return str(begun[-1])

    monkeypatch.setattr(launch, "start", start)
    monkeypatch.setattr(launch, "follow", lambda home, run, directory, tell: ends[int(run)])
    try:
        launch.run_to_end(home, None, told.append)
    except RunError as failure:
        return len(begun), told, str(failure)
    return len(begun), told, ""


def test_a_run_is_restarted_until_it_has_a_result(tmp_path, monkeypatch):
    begun, told, failure = through(tmp_path, monkeypatch, ["finished:failed", None])
    assert (begun, failure) == (2, "")
    assert told == ["Flower ended the run, which had not failed: it continues from the last round"]


def test_the_number_of_restarts_is_limited(tmp_path, monkeypatch):
    begun, _, failure = through(tmp_path, monkeypatch, ["finished:failed"] * 9)
    assert begun == launch.TRIES
    assert failure == "Flower reports finished:failed; the same command continues from the last round"


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        ("finished:stopped", "", "Flower reports finished:stopped"),
        ("finished:failed", "too few sites", "too few"),
    ],
)
def test_stopped_and_failed_runs_are_not_restarted(tmp_path, monkeypatch, status, error, said):
    begun, told, failure = through(tmp_path, monkeypatch, [status], error)
    assert (begun, told) == (1, [])
    assert failure.startswith(said)
