import json
from pathlib import Path

import pytest

from fedssl.errors import RunError
from fedssl.tables.measure import format_number, oscillation, read_number
from fedssl.tables.table import Measure


def test_a_straight_line_does_not_oscillate():
    assert oscillation([0.1, 0.3, 0.5, 0.7]) == pytest.approx(0.0)


def test_a_zigzag_by_hand():
    # Second differences of 0, 1, 0, 1 are −2 and 2; those of 0, 1, 0, 2 are −2 and 3.
    assert oscillation([0, 1, 0, 1]) == 2.0
    assert oscillation([0, 1, 0, 2]) == 2.5


def test_two_rounds_are_too_few():
    with pytest.raises(RunError, match="at least 3 rounds, and the run has 2"):
        oscillation([1.0, 0.9])


def test_shares_of_clients_are_means_over_the_rounds_that_have_them(tmp_path: Path):
    lines = [{"round": 1}, {"round": 2, "mu_capped": 1.0}, {"round": 3, "mu_capped": 0.2}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    reading = read_number(tmp_path, Measure(kind="mu-capped"))
    assert (reading.number, reading.untrained) == (pytest.approx(60.0), None)
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps({"round": n, "angle_beta": angle}) + "\n" for n, angle in ((1, 0.5), (2, -0.25)))
    )
    beta = Measure(kind="angle-beta")
    assert read_number(tmp_path, beta).number == 0.125
    assert format_number(0.125, beta) == "0.1250"
    with pytest.raises(RunError, match="no round has predictor_replaced"):
        read_number(tmp_path, Measure(kind="predictor-replaced"))
