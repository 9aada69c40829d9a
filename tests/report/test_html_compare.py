"""Several runs: means, spreads and tests against numbers worked out by hand."""

from __future__ import annotations

import pytest
from scipy import stats

from fedssl.report.html.data import document
from tests.report.handmade import METRICS, entry, finished, partition, result, run_dir

FEDEMA, FEDAVG = (0.80, 0.82, 0.87), (0.78, 0.79, 0.83)


@pytest.fixture
def six(tmp_path):
    runs = [finished(tmp_path / f"ema{seed}", number, seed=seed) for seed, number in enumerate(FEDEMA)]
    return runs + [
        finished(tmp_path / f"avg{seed}", number, seed=seed, method="fedavg")
        for seed, number in enumerate(FEDAVG)
    ]


def cells(comparison, measure):
    return [row["cells"][measure] for row in comparison["table"]]


def test_seeds_are_one_group_with_mean_and_spread(six):
    found = document(six)["comparison"]
    assert [(group["name"], group["seeds"]) for group in found["groups"]] == [
        ("fedema", [0, 1, 2]),
        ("fedavg", [0, 1, 2]),
    ]
    ema, avg = cells(found, "linear.accuracy")
    # By hand: deviations of fedema from 0.83 are −0.03, −0.01, 0.04; of fedavg from 0.80: −0.02, −0.01, 0.03.
    assert (ema["mean"], ema["spread"], ema["seeds"]) == (pytest.approx(0.83), pytest.approx(0.0013**0.5), 3)
    assert (avg["mean"], avg["spread"]) == (pytest.approx(0.80), pytest.approx(0.0007**0.5))
    assert cells(found, "bytes")[0]["mean"] == 1700
    assert cells(found, "seconds")[0] == {"mean": 4.0, "spread": 0.0, "seeds": 3}


def test_paired_over_shared_seeds(six):
    comparison = document(six)["comparison"]
    (found,) = [pair for pair in comparison["pairs"] if pair["measure"] == "linear.accuracy"]
    assert (found["first"], found["second"], found["seeds"]) == ("g0", "g1", [0, 1, 2])
    assert found["mean"] == pytest.approx(0.03)
    assert found["spread"] == pytest.approx(0.01)
    assert found["p"] == pytest.approx(stats.ttest_rel(FEDEMA, FEDAVG).pvalue)
    assert found["p_corrected"] == found["p"]  # one pair
    interval = stats.ttest_rel(FEDEMA, FEDAVG).confidence_interval(0.95)
    assert (found["low"], found["high"]) == pytest.approx((interval.low, interval.high))
    assert found["word"] == "higher"


def test_several_settings_are_one_family(six, tmp_path):
    third = [
        finished(tmp_path / f"u{seed}", n, seed=seed, method="fedu") for seed, n in enumerate((0.5, 0.9, 0.8))
    ]
    comparison = document([*six, *third])["comparison"]
    found = [pair for pair in comparison["pairs"] if pair["measure"] == "linear.accuracy"]
    assert len(found) == 3
    assert found[0]["p_corrected"] == pytest.approx(3 * stats.ttest_rel(FEDEMA, FEDAVG).pvalue)
    assert found[0]["word"] == "undecided"


def test_only_shared_seeds_are_paired(six):
    comparison = document([*six[:2], *six[4:]])["comparison"]  # fedema 0, 1; fedavg 1, 2
    found = comparison["pairs"][0]
    assert (found["seeds"], found["p"], found["word"]) == ([1], None, "one seed only")
    assert found["mean"] == pytest.approx(0.82 - 0.79)
    apart = document([six[0], six[5]])["comparison"]["pairs"][0]
    assert (apart["seeds"], apart["mean"], apart["word"]) == ([], None, "no shared seeds")


@pytest.mark.parametrize(
    ("others", "word"), [((0.9, 0.925, 0.965), "lower"), (FEDEMA, "the same"), ((0.7, 0.9, 0.8), "undecided")]
)
def test_verdicts_of_the_test(tmp_path, others, word):
    runs = [finished(tmp_path / f"a{seed}", number, seed=seed) for seed, number in enumerate(FEDEMA)]
    runs += [finished(tmp_path / f"b{seed}", n, seed=seed, method="fedavg") for seed, n in enumerate(others)]
    assert document(runs)["comparison"]["pairs"][0]["word"] == word


def test_only_what_differs_is_listed(six):
    rows = {row["key"]: row["values"] for row in document(six)["comparison"]["differences"]}
    assert rows["method.name"] == ["fedema", "fedavg"]
    assert rows["method.tau"] == [0.7, None]
    assert all(key.startswith("method.") for key in rows)


def test_machine_settings_are_not_differences(tmp_path):
    one = finished(tmp_path / "a", seed=0, **{"engine.workers": 2, "checkpoint.every": 7})
    two = finished(tmp_path / "b", seed=1, **{"log.tensorboard": False})
    found = document([one, two])["comparison"]
    assert [group["seeds"] for group in found["groups"]] == [[0, 1]]
    assert (found["differences"], found["pairs"]) == ([], [])


def test_a_repeated_config_and_seed_is_another_group(tmp_path):
    found = document([finished(tmp_path / "a"), finished(tmp_path / "b")])["comparison"]
    assert [group["name"] for group in found["groups"]] == ["a", "b"]


def test_groups_are_named_by_their_differences(tmp_path):
    runs = [finished(tmp_path / str(tau), **{"method.tau": tau, "train.lr": 0.1}) for tau in (0.1, 0.25)]
    runs.append(finished(tmp_path / "c", objective="simclr", method="fedavg", **{"train.lr": 0.1}))
    names = [group["name"] for group in document(runs)["comparison"]["groups"]]
    assert names == ["byol · fedema · method.tau=0.1", "byol · fedema · method.tau=0.25", "simclr · fedavg"]


def test_bands_are_means_and_spreads_by_round(tmp_path):
    def line(number, loss):
        return {**METRICS[0], "round": number, "loss": loss}

    long = run_dir(tmp_path / "a", metrics=[line(1, 4.0), line(2, 3.0), line(3, 2.0)], seed=0)
    short = run_dir(tmp_path / "b", metrics=[line(1, 6.0), line(2, 5.0)], seed=1)
    found = document([long, short])["comparison"]
    (loss,) = [curve for curve in found["curves"] if curve["key"] == "loss"]
    (drawn,) = loss["lines"]
    assert (drawn["rounds"], drawn["values"], drawn["seeds"]) == ([1, 2, 3], [5.0, 4.0, 2.0], [2, 2, 1])
    assert drawn["spread"] == [pytest.approx(2**0.5, rel=1e-5), pytest.approx(2**0.5, rel=1e-5), None]


def test_the_comparison_in_sentences(six):
    text = " ".join(document(six)["summary"])
    assert "2 settings with 3 seeds each." in text
    assert "fedema is best: 83.0 ± 3.6 %; next is fedavg with 80.0 ± 2.6 %" in text
    assert (
        "significantly ahead of fedavg: +3.0 points on average over 3 seeds (paired t-test: p = 0.035)"
        in text
    )
    two = " ".join(document([six[0], six[3]])["summary"])
    assert "fewer than two seeds" in two


def test_runs_without_numbers_can_be_compared(tmp_path):
    runs = [
        run_dir(tmp_path / "a", metrics=METRICS, result=result(why="no labels"), partition=partition(())),
        run_dir(tmp_path / "b", method="fedavg"),
    ]
    found = document(runs)
    assert found["comparison"]["table"][1]["cells"]["loss"] is None
    assert cells(found["comparison"], "loss")[0]["mean"] == 2.5


def test_unfinished_runs_are_compared_by_their_monitor(tmp_path):
    runs = [run_dir(tmp_path / name, metrics=METRICS, method=name) for name in ("fedavg", "fedema")]
    found = document(runs)["comparison"]
    assert [measure["key"] for measure in found["measures"] if measure["tested"]] == ["monitor"]
    assert cells(found, "monitor")[0]["mean"] == 0.75


def test_settings_with_and_without_probes(tmp_path):
    with_probe = finished(tmp_path / "a")
    without = run_dir(tmp_path / "b", metrics=METRICS, method="fedavg")
    found = document([with_probe, without])["comparison"]
    assert cells(found, "linear.accuracy")[1] is None
    assert entry("linear", 0.75)["accuracy"] == cells(found, "linear.accuracy")[0]["mean"]
