"""Measures of recipes other than probes: the end-to-end classifier and drift; and a logarithmic axis."""

import json

import pytest

from fedssl.tables.figure import _spans_decades
from fedssl.tables.measure import read_number
from fedssl.tables.table import Measure


@pytest.fixture
def run(tmp_path):
    """The files of a run with three rounds."""
    entry = {"protocol": "classifier", "accuracy": 0.25, "untrained": 0.1}
    (tmp_path / "result.json").write_text(json.dumps({"probes": [entry], "why_no_probes": ""}))
    lines = [json.dumps({"round": number, "drift": 10.0 / number}) for number in (1, 2, 4)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_the_classifier_is_read_from_the_result(run):
    reading = read_number(run, Measure(kind="classifier"))
    assert (reading.number, reading.untrained) == (25.0, 10.0)


def test_drift_is_that_of_the_last_round_and_less_is_better(run):
    reading = read_number(run, Measure(kind="drift"))
    assert (reading.number, reading.untrained) == (2.5, None)
    assert Measure(kind="drift").lower_is_better
    assert not Measure(kind="classifier").lower_is_better


def test_the_papers_drift_and_the_local_test_are_evaluations_that_the_run_keeps(run):
    entries = [
        {"protocol": "drift", "from_mean": 3.5, "from_received": 9.0, "overrides": {}},
        {"protocol": "local", "accuracy": 0.7, "untrained": 0.4, "overrides": {}},
    ]
    (run / "evaluations.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    reading = read_number(run, Measure(kind="drift-from-mean"))
    assert (reading.number, reading.untrained) == (3.5, None)
    assert Measure(kind="drift-from-mean").lower_is_better
    reading = read_number(run, Measure(kind="local"))
    assert (reading.number, reading.untrained) == pytest.approx((70.0, 40.0))


def test_an_axis_is_logarithmic_where_numbers_span_decades():
    assert _spans_decades([5.0, 0.02])
    assert not _spans_decades([1.0, 0.5, 0.2])
    assert not _spans_decades([0.0, 100.0])
