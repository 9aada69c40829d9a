"""The store of results: what counts, what is out of date, and several writers at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedssl._version import Change, change_since
from fedssl.config import load as load_config
from fedssl.papers.recipe import Recipe, load
from fedssl.tables import store as stores
from fedssl.tables.archive import Archive, place_of
from fedssl.tables.campaign import Campaign
from fedssl.tables.cells import cells, portable
from fedssl.tables.results import Results
from fedssl.tables.store import Difference, Number, Place, Record, Stale, Store, append
from fedssl.tables.table import Measure
from tests.suite.warm import CONTEXT
from tests.tables.conftest import SMALL, FakeTraining

Write = Callable[..., Path]


def run(recipe: Recipe, folder: Path, seeds: int = 2, name: str = "out", **options: Any) -> Results:
    """A campaign with a store in `folder`/cells and a new folder of runs for each name."""
    archive = Archive(Store(folder / "cells"))
    campaign = Campaign([recipe.at("smoke")], seeds, out=folder / name, archive=archive, **options)
    (results,) = campaign.run(Console(file=StringIO()))
    return results


def shown(recipe: Recipe, folder: Path, seeds: int = 2) -> Results:
    """The table from the store alone."""
    archive = Archive(Store(folder / "cells"))
    campaign = Campaign([recipe.at("smoke")], seeds, out=folder / "shown", archive=archive)
    (results,) = campaign.show(Console(file=StringIO()))
    return results


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "cells" / "mine.jsonl").read_text().splitlines()]


def page(folder: Path, name: str = "shown") -> str:
    return (folder / name / "mine-smoke.md").read_text()


# --- kept and found -------------------------------------------------------------------------------


def test_a_line_is_a_complete_record_of_a_cell(small: Recipe, training: FakeTraining, tmp_path: Path) -> None:
    run(small, tmp_path, seeds=1)
    found = lines(tmp_path)
    assert len(found) == 4
    line = found[0]
    assert line["seed"] == 0
    assert line["config"]["objective"]["name"] == "simclr"
    assert not {"seed", "log", "checkpoint"} & line["config"].keys()
    assert line["places"] == [{"table": "mine", "scale": "smoke", "row": "SimCLR", "column": "iid"}]
    assert line["numbers"] == [
        {"measure": {"kind": "knn"}, "number": 50.0, "untrained": 25.0},
        {"number": 50.0, "untrained": 25.0},
    ]
    assert line["seconds"] == 2.0
    assert len(line["key"]) == 8


def test_the_page_is_rebuilt_without_runs_to_the_same_numbers(
    small: Recipe, training: FakeTraining, tmp_path: Path
) -> None:
    training.accuracy = lambda config: 0.5 + 0.013 * config.seed + 0.1 * (config.objective.name == "byol")
    ran = run(small, tmp_path)
    stored = shown(small, tmp_path)
    assert len(training.trained) == 8
    numbers = [(outcome.cell.name, outcome.number, outcome.untrained) for outcome in ran.outcomes]
    assert [(outcome.cell.name, outcome.number, outcome.untrained) for outcome in stored.outcomes] == numbers
    assert stored.orderings() == ran.orderings()
    table, same = (page(tmp_path, name).split("## Settings")[0] for name in ("out", "shown"))
    assert same == table


def test_only_what_the_store_lacks_is_trained(small: Recipe, training: FakeTraining, tmp_path: Path) -> None:
    run(small, tmp_path, seeds=1)
    run(small, tmp_path, seeds=2, name="elsewhere")
    assert len(training.trained) == 8
    assert {path.parent.parent.name for path in training.trained[4:]} == {"elsewhere"}
    assert len(lines(tmp_path)) == 8


def test_a_stopped_campaign_has_stored_finished_cells(
    small: Recipe, training: FakeTraining, tmp_path: Path
) -> None:
    def stop_at_the_third(config: Any) -> bool:
        if len(training.trained) == 3:
            raise KeyboardInterrupt
        return False

    training.fails = stop_at_the_third
    with pytest.raises(KeyboardInterrupt):
        run(small, tmp_path)
    assert len(lines(tmp_path)) == 2
    assert len(shown(small, tmp_path).outcomes) == 2
    training.fails = lambda config: False
    training.trained.clear()
    assert len(run(small, tmp_path, name="elsewhere").outcomes) == 8
    assert len(training.trained) == 6


def test_runs_finished_elsewhere_are_stored(small: Recipe, training: FakeTraining, tmp_path: Path) -> None:
    campaign = Campaign([small.at("smoke")], 2, out=tmp_path / "out")
    campaign.run(Console(file=StringIO()))
    assert not (tmp_path / "cells").exists()
    run(small, tmp_path)
    assert len(training.trained) == 8
    assert len(lines(tmp_path)) == 8


def test_a_missing_seed_is_named(small: Recipe, training: FakeTraining, tmp_path: Path) -> None:
    run(small, tmp_path, seeds=2)
    results = shown(small, tmp_path, seeds=3)
    assert [len(results.numbers("BYOL", column)) for column in ("iid", "skewed")] == [2, 2]
    assert "| 2 of 3: seed 2 not run " in page(tmp_path)


def test_a_failed_seed_is_named_also_from_the_store(
    small: Recipe, training: FakeTraining, tmp_path: Path
) -> None:
    training.fails = lambda config: (config.objective.name, config.seed) == ("byol", 1)
    with pytest.raises(Exception, match="2 cells failed"):
        run(small, tmp_path)
    assert shown(small, tmp_path).failures
    assert "| 1 of 2: seed 1 failed (BYOL · iid)" in page(tmp_path)
    training.fails = lambda config: False
    assert not run(small, tmp_path, name="again").failures
    assert not shown(small, tmp_path).failures


def test_a_number_of_another_measure_is_not_the_cells(
    training: FakeTraining, tmp_path: Path, write: Write
) -> None:
    run(load(str(write(SMALL))), tmp_path, seeds=1)
    other = load(str(write(SMALL.replace('title = "a comparison"', 'title = "b"\nmeasure = "semi"'))))
    assert not shown(other, tmp_path, seeds=1).outcomes
    knn = load(str(write(SMALL.replace('title = "a comparison"', 'title = "b"\nmeasure = "knn"'))))
    assert len(shown(knn, tmp_path, seeds=1).outcomes) == 4  # every probe of the run is kept


def test_curves_are_kept_and_drawn(training: FakeTraining, tmp_path: Path, write: Write) -> None:
    figure = '[figure]\nkind = "curve"\ny = "clients.mu"\n'
    measure = 'measure = { kind = "rounds-to", target = 0.25 }\n[base]'
    recipe = load(
        str(write(SMALL.replace("[base]", measure).replace("[[column]]", f"{figure}[[column]]", 1)))
    )
    metrics = [
        {
            "round": number,
            "loss": 1 / number,
            "probe": {"knn": number / 10},
            "clients": [{"client": 3, "mu": 0.123456789 * number}, {"client": 4}],
        }
        for number in (1, 2, 3)
    ]
    fake = training.__call__

    def train(config: Any, path: Path) -> None:
        fake(config, path)
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedssl.tables.runner.train", train)
        run(recipe, tmp_path, seeds=1)
    (outcome, *_) = shown(recipe, tmp_path, seeds=1).outcomes
    assert list(outcome.points("clients.mu")) == [(1, 3, 0.123457), (2, 3, 0.246914), (3, 3, 0.37037)]
    assert list(outcome.points("probe.knn")) == [(1, 0, 0.1), (2, 0, 0.2), (3, 0, 0.3)]
    assert outcome.number == 3
    assert (tmp_path / "shown" / "mine-smoke.png").exists()
    later = load(str(write(recipe.file.read_text().replace("0.25", "0.15"))))
    assert shown(later, tmp_path, seeds=1).outcomes[0].number == 2  # read from the stored curve


def test_infinite_numbers_survive() -> None:
    number = Number(number=float("inf"))
    record = Record(config={}, seed=0, numbers=(number,), curves={"loss": {"0": [[1], [float("nan")]]}})
    text = record.model_dump_json(exclude_defaults=True)
    assert json.loads(text)["numbers"] == [{"number": "Infinity"}]
    assert Record.model_validate_json(text).numbers == (number,)


# --- out of date ----------------------------------------------------------------------------------


def test_a_changed_config_is_shown_as_stale_and_trained_again(
    training: FakeTraining, tmp_path: Path, write: Write
) -> None:
    run(load(str(write(SMALL))), tmp_path)
    changed = load(
        str(write(SMALL.replace('{ objective = "byol" }', '{ objective = "byol", train.lr = 0.5 }')))
    )
    results = shown(changed, tmp_path)
    assert {(cell.cell.row) for cell in results.outcomes} == {"SimCLR"}
    text = page(tmp_path)
    assert "| BYOL              | stale" in text
    lr = load_config({"objective": "byol"}).train.lr
    assert f"- train.lr was {lr}, is 0.5: BYOL · iid (seeds 0, 1), BYOL · skewed (seeds 0, 1)" in text
    assert "| 0 of 2: seeds 0, 1 stale " in text
    run(changed, tmp_path, name="again")
    assert len(training.trained) == 8 + 4
    assert not shown(changed, tmp_path).stale


def test_a_new_key_does_not_make_a_cell_stale(small: Recipe, training: FakeTraining, tmp_path: Path) -> None:
    run(small, tmp_path)
    before = lines(tmp_path)
    for line in before:
        del line["config"]["semi"], line["config"]["train"]["clip"]
    file = tmp_path / "cells" / "mine.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in before))
    results = shown(small, tmp_path)
    assert len(results.outcomes) == 8
    assert not results.stale


def test_limits_for_broken_uploads_do_not_make_a_cell_stale(
    small: Recipe, training: FakeTraining, tmp_path: Path
) -> None:
    """They change nothing where no upload is refused; their defaults may be tightened."""
    run(small, tmp_path, seeds=1)
    before = lines(tmp_path)
    assert all("max_change" not in line["config"]["participation"] for line in before)
    for line in before:
        line["config"]["participation"]["max_change"] = 0.5
    file = tmp_path / "cells" / "mine.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in before))
    results = shown(small, tmp_path, seeds=1)
    assert len(results.outcomes) == 4
    assert not results.stale


def test_a_removed_key_makes_a_cell_stale(small: Recipe, training: FakeTraining, tmp_path: Path) -> None:
    run(small, tmp_path, seeds=1)
    text = (tmp_path / "cells" / "mine.jsonl").read_text().replace('"train":{', '"train":{"bygone":1,')
    (tmp_path / "cells" / "mine.jsonl").write_text(text)
    results = shown(small, tmp_path, seeds=1)
    assert not results.outcomes
    assert {stale.why for stale in results.stale.values()} == {"train.bygone is removed"}


def test_a_change_of_the_numerics_makes_the_runs_it_names_stale(
    small: Recipe, training: FakeTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(small, tmp_path)
    changes = [Change(2, {"objective.name": "byol"}, "BYOL's target is updated after the step")]
    monkeypatch.setattr(
        stores, "change_since", lambda version, config: change_since(version, config, changes)
    )
    results = shown(small, tmp_path)
    assert {outcome.cell.row for outcome in results.outcomes} == {"SimCLR"}
    assert "- BYOL's target is updated after the step: BYOL · iid (seeds 0, 1)" in page(tmp_path)


def test_changes_of_the_numerics() -> None:
    one, two = Change(2, {"method.name": "featarc"}, "one"), Change(3, {}, "two")
    assert change_since(1, {"method.name": "fedavg"}, [one]) is None
    assert change_since(1, {"method.name": "featarc"}, [one]) == one
    assert change_since(2, {"method.name": "featarc"}, [one]) is None
    assert change_since(2, {"method.name": "fedavg"}, [one, two]) == two


def test_paths_and_machine_settings_do_not_make_a_cell_stale(small: Recipe) -> None:
    table = small.at("smoke")
    plain = cells(table, 1, {})[0].config
    other = cells(table, 2, {"device": "cpu", "engine.workers": 2, "checkpoint.every": 1})[4].config
    assert portable(plain) == portable(other)
    assert portable(plain) != portable(cells(table, 1, {"rounds": 3})[0].config)
    npz = {"data": {"name": "npz", "root": "/one/a_train.npz"}}
    elsewhere = {"data": {"name": "npz", "root": "/two/a_train.npz"}}
    assert portable(load_config(npz)) == portable(load_config(elsewhere))


# --- published means ------------------------------------------------------------------------------


def published(recipe: Recipe, folder: Path, flaw: str = "") -> None:
    """Means over three seeds of both rows, and of their difference."""
    table = recipe.at("smoke")
    for cell in cells(table, 1, {}):
        mean = {"SimCLR": 40.0, "BYOL": 45.0}[cell.row]
        number = Number(number=mean, spread=1.0, n=3, untrained=30.0, untrained_spread=0.5)
        record = Record(
            config=portable(cell.config),
            seed=None,
            places=(place_of(table, cell),),
            numbers=(number,),
            flaw=flaw,
        )
        append(folder / "cells" / "mine.jsonl", record.model_dump_json(exclude_defaults=True))
    difference = Difference(
        table="mine", scale="smoke", text="BYOL > SimCLR", where="iid", mean=5.0, spread=0.5, n=3
    )
    append(folder / "cells" / "mine.jsonl", difference.model_dump_json())


def test_published_means_are_marked_and_judged_by_the_t_test(small: Recipe, tmp_path: Path) -> None:
    published(small, tmp_path)
    results = shown(small, tmp_path, seeds=3)
    iid, skewed = results.orderings()
    # t = 5 / (0.5 / √3) = 17.3 with 2 degrees of freedom: p = 0.0033, twice that after Holm's correction.
    assert (iid.verdict.word, iid.verdict.n, iid.published) == ("held", 3, True)
    assert iid.verdict.p == pytest.approx(0.0033, abs=1e-4)
    # Its difference was not published: the mean is 45 − 40, the standard deviation at most 1 + 1.
    # t = 5 / (2 / √3) = 4.33: p = 0.0494.
    assert (skewed.verdict.mean, skewed.verdict.spread, skewed.bounded) == (5.0, 2.0, True)
    assert skewed.verdict.p == pytest.approx(0.0494, abs=1e-4)
    text = page(tmp_path)
    assert "| BYOL              | 45.00 ± 1.00 (3)† | 80.00 |" in text
    assert "| untrained encoder | 30.00 ± 0.50 (3)† |" in text
    assert "only mean and standard deviation are known" in text
    assert "| +5.00 ± at most 2.00 |" in text
    assert "| 3‡  |" in text


@pytest.mark.parametrize("seed", range(5))
def test_the_spread_of_a_difference_is_at_most_the_sum_of_spreads(seed: int) -> None:
    """Verdicts on unpublished differences rely on this."""
    better, worse = np.random.default_rng(seed).normal(0, 1, (2, 3))
    bound = np.std(better, ddof=1) + np.std(worse, ddof=1)
    assert np.std(better - worse, ddof=1) <= bound
    opposite = -2.0 * better + 7.0  # reached where one side is large when the other is small
    assert np.std(better - opposite, ddof=1) == pytest.approx(3 * np.std(better, ddof=1))


def test_means_of_different_numbers_of_seeds_are_not_compared(small: Recipe, tmp_path: Path) -> None:
    published(small, tmp_path)
    file = tmp_path / "cells" / "mine.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[0]["numbers"][0]["n"] = 5
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [judged.verdict.n for judged in shown(small, tmp_path, seeds=3).orderings()] == [0, 3]


def test_measured_seeds_replace_published_means(
    small: Recipe, training: FakeTraining, tmp_path: Path
) -> None:
    published(small, tmp_path)
    results = run(small, tmp_path, seeds=1)
    assert len(training.trained) == 4
    assert not shown(small, tmp_path, seeds=1).means
    assert not any(judged.published for judged in results.orderings())


def test_a_flawed_result_is_shown_and_not_used(small: Recipe, tmp_path: Path) -> None:
    published(small, tmp_path, flaw="the generator had diverged")
    results = shown(small, tmp_path, seeds=3)
    assert not results.means
    assert not any(judged.verdict.n for judged in results.orderings())
    line = "- the generator had diverged: SimCLR · iid (was 40.00 ± 1.00 (3)†), SimCLR · skewed"
    assert line in page(tmp_path)


# --- several writers ------------------------------------------------------------------------------


def _write_lines(file: Path, writer: int) -> None:
    for number in range(100):
        append(file, json.dumps({"writer": writer, "number": number, "text": "x" * 3000}))


def test_two_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "cells" / "a.jsonl"
    writers = [CONTEXT.Process(target=_write_lines, args=(file, writer)) for writer in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    found = [json.loads(line) for line in file.read_text().splitlines()]
    for writer in range(2):
        assert [line["number"] for line in found if line["writer"] == writer] == list(range(100))


def test_a_truncated_line_is_ignored_and_removed_by_the_next_writer(
    small: Recipe, training: FakeTraining, tmp_path: Path
) -> None:
    run(small, tmp_path, seeds=1)
    file = tmp_path / "cells" / "mine.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    assert len(shown(small, tmp_path, seeds=1).outcomes) == 3
    run(small, tmp_path, seeds=1, name="again")
    assert len(training.trained) == 5
    assert len(lines(tmp_path)) == 4


def test_the_same_result_is_one_line(small: Recipe, training: FakeTraining, tmp_path: Path) -> None:
    results = run(small, tmp_path, seeds=1)
    archive = Archive(Store(tmp_path / "cells"))
    archive.keep(results.table, results.outcomes[0])
    assert len(lines(tmp_path)) == 4
    archive.keep(results.table, replace(results.outcomes[0], number=51.0))
    assert len(lines(tmp_path)) == 5
    assert Archive(Store(tmp_path / "cells")).find(results.table, results.outcomes[0].cell).number == 51.0  # type: ignore[union-attr]


def test_seeds_with_stored_results(small: Recipe, training: FakeTraining, tmp_path: Path) -> None:
    run(small, tmp_path, seeds=2, first_seed=3)
    store = Store(tmp_path / "cells")
    assert Archive(store).seeds(small.at("smoke")) == {3, 4}
    assert store.seeds([Place(table="other", scale="smoke", row="BYOL", column="iid")]) == set()
    cell = cells(small.at("smoke"), 1, {}, 3)[0]
    found = store.find(cell, place_of(small.at("smoke"), cell))
    assert not isinstance(found, Stale)
    assert found is not None
    assert found.number(Measure(kind="knn")) is not None
