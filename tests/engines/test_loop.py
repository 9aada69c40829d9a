import pytest

from fedssl.config import ParticipationConfig
from fedssl.engines.loop import RoundReport, sample_clients
from fedssl.engines.tasks import Outcome
from fedssl.state import Upload


@pytest.mark.parametrize(
    ("asked", "clients", "count"),
    [(5, 20, 5), (8, 80, 8), (1.0, 7, 7), (0.25, 20, 5), (0.01, 5, 1), (9, 5, 5), (1, 5, 1)],
)
def test_participation_by_count_and_by_share(asked, clients, count):
    drawn = sample_clients(ParticipationConfig(per_round=asked), clients, seed=0, round=1)
    assert len(set(drawn)) == len(drawn) == count
    assert drawn == sorted(drawn)
    assert all(0 <= client < clients for client in drawn)


def test_sampling_is_seeded_by_round_and_fair():
    config = ParticipationConfig(per_round=5)
    assert sample_clients(config, 20, 0, 3) == sample_clients(config, 20, 0, 3)
    counts = [0] * 20
    for number in range(2000):
        for client in sample_clients(config, 20, 0, number):
            counts[client] += 1
    assert all(abs(count - 500) < 100 for count in counts)  # 500 ± 5 standard deviations (19.4)


def test_a_line_of_metrics_by_hand():
    report = RoundReport(7, seconds=2.0)
    report.outcomes = [
        Outcome(0, Upload(0, {}, 30, 1.0, {"divergence": 2.0}), views=60, seconds=1.0),
        Outcome(1, Upload(1, {}, 10, 3.0, {"divergence": 6.0, "mu": 0.5}), views=20, seconds=0.5),
        Outcome(2, failure="asleep"),
    ]
    line = report.line()
    assert line["loss"] == pytest.approx(1.5)
    assert line["divergence"] == pytest.approx(3.0)
    assert line["views"] == 80
    assert line["failed"] == [{"client": 2, "reason": "asleep"}]
    assert line["clients"][1] == {
        "client": 1,
        "images": 10,
        "loss": 3.0,
        "divergence": 6.0,
        "mu": 0.5,
        "seconds": 0.5,
    }
