"""The page agrees with the files of the run."""

from __future__ import annotations

import json
import math

import pytest

from fedssl.errors import RunError
from fedssl.report.html.curves import MOST_POINTS, curves
from fedssl.report.html.data import document
from tests.report.handmade import METRICS, entry, finished, partition, result, run_dir


def only(path):
    (run,) = document([path])["runs"]
    return run


def curve(run, key):
    (found,) = [each for each in run["curves"] if each["key"] == key]
    return found


def rows(table):
    keys = [column["key"] for column in table["columns"]]
    return [dict(zip(keys, row, strict=True)) for row in table["rows"]]


def test_curves_are_those_of_the_metrics(tmp_path):
    run = only(finished(tmp_path / "a"))
    loss = curve(run, "loss")
    assert (loss["rounds"], loss["values"]) == ([1, 2, 3], [4.5, 3.0, 2.5])
    assert (loss["low"], loss["high"]) == ([4.0, 3.0, 2.0], [6.0, 3.0, 4.0])
    assert loss["clients"] == {"0": [4.0, 3.0, 2.0], "1": [6.0, None, 4.0]}
    assert curve(run, "mu")["values"] == [
        0.5,
        0.5,
        0.25,
    ]  # the line does not average it: every client counts once
    knn = curve(run, "probe.knn")
    assert (knn["rounds"], knn["values"], knn["unit"]) == ([1, 3], [0.25, 0.75], "percent")
    assert curve(run, "bytes_up")["values"] == [200, 100, 200]
    assert curve(run, "views_per_second")["values"] == [50, 60, 100]
    assert curve(run, "failed")["values"] == [0, 1, 0]
    assert [each["key"] for each in run["curves"]][:2] == ["loss", "probe.knn"]


def test_shares_of_clients_and_norms_by_kind_are_explained():
    clients = [{"client": 0, "mu": 1.0, "mu_capped": 1.0}, {"client": 1, "mu": 0.5, "mu_capped": 0.0}]
    shown = {
        each["key"]: each
        for each in (
            curve.document()
            for curve in curves(
                [{"round": 1, "mu_capped": 0.5, "norm_gamma": 2.0, "angle_beta": 0.25, "clients": clients}]
            )
        )
    }
    assert shown["mu_capped"]["label"] == "clients with μ = 1"
    assert (shown["mu_capped"]["unit"], shown["mu_capped"]["values"]) == ("percent", [0.5])
    assert (shown["norm_gamma"]["label"], shown["angle_beta"]["label"]) == ("norm of γ", "angle δ of β")


def test_unknown_numbers_become_curves():
    lines = [
        {
            "round": 1,
            "odd_number": 3,
            "word": "x",
            "clients": [{"client": 0, "kept": 0.5, "cluster": 1, "angles": {}}],
        },
        {"round": 2, "odd_number": True, "clients": [{"client": 0, "kept": 1.5, "cluster": 0}]},
    ]
    found = {each.key: each.points for each in curves(lines)}
    assert found == {"odd_number": {1: 3.0}, "kept": {1: 0.5, 2: 1.5}}


def test_long_runs_are_thinned_and_keep_their_ends():
    lines = [{"round": number, "loss": 1 / number, "clients": []} for number in range(1, 5001)]
    drawn = next(each for each in curves(lines) if each.key == "loss").document()
    assert len(drawn["rounds"]) <= MOST_POINTS + 1
    assert (drawn["rounds"][0], drawn["rounds"][-1]) == (1, 5000)
    assert drawn["values"][-1] == 0.0002


def test_values_that_are_not_finite_are_left_out_and_reported(tmp_path):
    metrics = [METRICS[0], {**METRICS[1], "loss": math.nan, "clients": []}]
    run = only(run_dir(tmp_path / "a", metrics=metrics))
    assert curve(run, "loss")["values"] == [4.5, None]
    assert any("diverged" in warning for warning in run["warnings"])
    json.dumps(document([tmp_path / "a"]), allow_nan=False)


def test_the_table_of_clients(tmp_path):
    path = finished(tmp_path / "a")
    (path / "evaluations.jsonl").write_text(
        json.dumps({**entry("personal", 0.9), "overrides": {}, "clients": [{"client": 1, "accuracy": 0.8}]})
        + "\n"
    )
    first, second = rows(only(path)["clients"])
    assert (first["images"], first["classes"], first["rounds"], first["failed"]) == (30, "cat 100 %", 3, 0)
    assert (second["images"], second["classes"]) == (10, "cat 50 %, dog 50 %")
    assert (second["rounds"], second["failed"]) == (2, 1)
    assert (first["loss"], second["mu"]) == (2.0, 0.375)
    assert (first["seconds"], second["seconds"]) == (pytest.approx(0.6), pytest.approx(1.0))
    assert (first["accuracy"], second["accuracy"]) == (None, 0.8)


def test_sites_are_called_by_their_names(tmp_path):
    sites = {"engine": {"name": "flower", "sites": ["north", "<b>south</b>"], "threads": 1}}
    empty = {**partition(()), "sizes": [0, 0]}
    run = only(run_dir(tmp_path / "a", metrics=METRICS, partition=empty, **sites))
    assert [row["site"] for row in rows(run["clients"])] == ["north", "<b>south</b>"]
    assert run["partition"]["sizes"] == [30, 10]  # as the sites reported when they took part


def test_failures_by_reason_and_one_by_one(tmp_path):
    failures = only(finished(tmp_path / "a"))["failures"]
    reason = "sent NaN in encoder.conv1.weight"
    assert (failures["total"], failures["turns"]) == (1, 6)
    assert failures["reasons"] == [{"reason": reason, "count": 1, "clients": [1], "first": 2, "last": 2}]
    assert failures["each"] == [{"round": 2, "client": 1, "reason": reason}]


def test_the_summary_in_sentences(tmp_path):
    run = only(finished(tmp_path / "a"))
    text = " ".join(run["summary"])
    for part in (
        "A resnet8 encoder was trained by byol with fedema on digits: 40 images at 2 clients; 3 rounds.",
        "Every client has images of 2 classes",
        "differ from the overall one by 0.38",
        "moderate heterogeneity",
        "classifies 75.0 % of test images correctly, 25.0 points above",
        "(50.0 %)",
        "Clients failed in 1 of 6 turns and were left out; most often: sent NaN in encoder.conv1.weight.",
        "Training took 4s, at 65 views per second; 1.7 KB were sent",
    ):
        assert part in text
    assert run["warnings"] == []
    assert (run["headline"]["accuracy"], run["headline"]["untrained"]) == (0.75, 0.5)
    tiles = {fact["label"]: fact["value"] for fact in run["facts"]}
    assert tiles == {
        "clients": 2,
        "heterogeneity": 0.375,
        "rounds": 3,
        "training": 4.0,
        "failures": 1,
        "memory": 512e6,
    }


def test_a_run_that_got_worse_has_a_warning(tmp_path):
    text = " ".join(only(finished(tmp_path / "a", accuracy=0.4))["summary"])
    assert "10.0 points below" in text
    assert "Training has not helped" in text


def test_collapse_is_reported(tmp_path):
    metrics = [{**METRICS[0], "probe": {"knn": 0.1, "feature_std": 0.01}}]
    assert any(
        "collapsed" in warning for warning in only(run_dir(tmp_path / "a", metrics=metrics))["warnings"]
    )


def test_probes_of_the_run_and_of_eval(tmp_path):
    path = finished(tmp_path / "a")
    later = {**entry("linear", 0.8), "overrides": {"probe.labels": 0.5}}
    same = {**entry("knn", 0.7), "overrides": {}}
    (path / "evaluations.jsonl").write_text("".join(json.dumps(each) + "\n" for each in (later, same)))
    found = [(probe["protocol"], probe["options"], probe["accuracy"]) for probe in only(path)["probes"]]
    assert found == [("linear", "", 0.75), ("knn", "", 0.7), ("linear", "probe.labels=0.5", 0.8)]
    assert only(path)["probes"][0]["confusion"] == [[7, 3], [2, 8]]


def test_before_the_first_round(tmp_path):
    run = only(run_dir(tmp_path / "a"))
    assert (run["curves"], run["probes"], run["partition"]) == ([], [], None)
    assert run["clients"]["rows"] == []
    assert (run["status"]["done"], run["status"]["finished"]) == (0, False)
    assert "is being trained" in run["summary"][0]
    assert "0 of 3 rounds so far" in run["summary"][0]


def test_an_unfinished_run_with_a_truncated_line(tmp_path):
    path = run_dir(tmp_path / "a", metrics=METRICS[:2], partition=partition(), rounds=20)
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"round": 3, "los')
    run = only(path)
    assert (run["status"]["done"], run["status"]["rounds"], run["status"]["finished"]) == (2, 20, False)
    assert run["status"]["round_seconds"] == 1.5
    assert any("fedssl resume" in warning for warning in run["warnings"])
    assert "The kNN monitor currently shows 25.0 %." in run["summary"]


def test_an_unlabeled_run(tmp_path):
    plain = [{key: value for key, value in line.items() if key != "probe"} for line in METRICS]
    why = "photos has no labels"
    path = run_dir(tmp_path / "a", metrics=plain, result=result(why=why), partition=partition(()))
    run = only(path)
    assert run["probes"] == []
    assert run["partition"]["by"] == []
    assert "There are no probes: photos has no labels." in " ".join(run["summary"])
    assert "classes" not in [column["key"] for column in run["clients"]["columns"]]


def test_keys_that_were_changed_are_marked(tmp_path):
    run = only(finished(tmp_path / "a", **{"train.lr": 0.3, "method.tau": 0.5}))
    changed = {row["key"]: row["value"] for row in run["config"] if row["changed"]}
    assert changed == {
        "rounds": 3,
        "partition.clients": 2,
        "objective.name": "byol",
        "method.name": "fedema",
        "method.tau": 0.5,
        "train.lr": 0.3,
    }


def test_a_config_that_this_version_cannot_read_is_shown_as_it_is(tmp_path):
    path = finished(tmp_path / "a")
    text = (path / "config.toml").read_text().replace('name = "fedema"', 'name = "./gone.py:Gone"')
    (path / "config.toml").write_text(text)
    run = only(path)
    assert {"key": "method.name", "value": "./gone.py:Gone", "changed": False} in run["config"]
    assert any("cannot read the config" in warning for warning in run["warnings"])
    assert curve(run, "loss")["values"] == [4.5, 3.0, 2.5]


def test_a_folder_without_a_run_is_an_error(tmp_path):
    with pytest.raises(RunError, match="not a run"):
        document([tmp_path])
    with pytest.raises(RunError, match="at least one"):
        document([])


def test_a_run_given_twice_counts_once(tmp_path):
    path = finished(tmp_path / "a")
    assert len(document([path, f"{path}/../a"])["runs"]) == 1


def test_images_are_loaded_once_per_setting(tmp_path):
    asked = []

    def draw(path):
        asked.append(path.name)
        return {"why_not": "drawn"}

    paths = [
        finished(tmp_path / f"{tau}-{seed}", seed=seed, **{"method.tau": tau})
        for tau in (0.1, 0.2)
        for seed in (1, 0)
    ]
    shown = document(paths, draw)
    assert asked == ["0.1-0", "0.2-0"]
    assert "see 0.1-0" in shown["runs"][1]["images"]["why_not"]
