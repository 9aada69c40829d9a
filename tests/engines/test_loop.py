import pytest
from tests.small import digest, small_run

from fedssl.engines.loop import draw_clients, sample_clients
from fedssl.engines.options import ParticipationConfig
from fedssl.engines.round_report import RoundReport
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


def test_max_clients_and_overshoot():
    asked = {"per_round": 0.5, "max_clients": 4, "overshoot": 0.3}
    selected, spares = draw_clients(ParticipationConfig(**asked), 20, seed=0, round=1)
    assert (len(selected), len(spares)) == (4, 2)  # 0.3 · 4, rounded up
    assert not set(selected) & set(spares)
    everybody = draw_clients(ParticipationConfig(per_round=5, overshoot=1.0), 6, seed=0, round=1)
    assert sorted(everybody[0] + everybody[1]) == list(range(6))  # there are no more


def test_spare_clients_are_sampled_uniformly():
    config, counts = ParticipationConfig(per_round=4, overshoot=0.25), [0] * 10
    for number in range(2000):
        for client in draw_clients(config, 10, 0, number)[1]:
            counts[client] += 1
    assert all(abs(count - 200) < 67 for count in counts)  # 200 ± 5 standard deviations (13.4)


FAILS = {"participation.per_round": 3, "participation.overshoot": 0.6, "participation.failure_rate": 0.3}


def test_spare_clients_take_the_place_of_those_that_fail(tmp_path):
    run = small_run(tmp_path / "a", rounds=8, **FAILS)
    seen = set()
    for line in run.metrics:
        done, failed = len(line["clients"]), len(line["failed"])
        unused = len(line.get("unused", []))
        assert done + failed + unused == 5
        assert done == min(3, 5 - failed)
        assert unused == 0 or done == 3
        seen.add((failed, unused))
    assert len(seen) > 1


@pytest.mark.usefixtures("warm_workers")
def test_spare_clients_leave_no_trace(tmp_path):
    """One process does not start spare clients, two workers do, with the same bits."""
    keys = {"objective": "byol", "method": "fedema", "rounds": 4, **FAILS}
    one = small_run(tmp_path / "one", **keys)
    two = small_run(tmp_path / "two", **keys, **{"engine.workers": 2})
    assert digest(one) == digest(two)
    for run in (one, two):
        kept = {file.parent.name for file in (run.path / "checkpoints" / "clients").rglob("round-*")}
        took_part = {str(client["client"]) for line in run.metrics for client in line["clients"]}
        assert kept == took_part


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
