import pytest

from fedssl.errors import RunError
from fedssl.tables.measure import oscillation


def test_a_straight_line_does_not_oscillate():
    assert oscillation([0.1, 0.3, 0.5, 0.7]) == pytest.approx(0.0)


def test_a_zigzag_by_hand():
    # Second differences of 0, 1, 0, 1 are −2 and 2; those of 0, 1, 0, 2 are −2 and 3.
    assert oscillation([0, 1, 0, 1]) == 2.0
    assert oscillation([0, 1, 0, 2]) == 2.5


def test_two_rounds_are_too_few():
    with pytest.raises(RunError, match="at least 3 rounds, and the run has 2"):
        oscillation([1.0, 0.9])
