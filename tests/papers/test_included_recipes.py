"""The recipes that come with the package: every cell is valid, and everything they ask for works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedssl import cli
from fedssl.papers import reproduce
from fedssl.papers.recipe import SCALES, load, titles
from fedssl.tables import cost
from fedssl.tables.cells import Cell
from fedssl.tables.cost import Stopwatch
from fedssl.tables.measure import MEANS
from fedssl.tables.runner import Outcome, run_cell
from tests.papers.cover import all_cells, cover, features

PARTS = 12  # of the runs that cover the recipes, so that they can be trained side by side


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all: recipes have many runs in common."""
    return tmp_path_factory.mktemp("reproduce")


@pytest.fixture(scope="module")
def covering() -> list[list[Cell]]:
    return cover(all_cells())


@pytest.fixture
def no_pictures_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take a third of the time of runs this small."""
    monkeypatch.setattr("fedssl.data.partition_picture.save_picture", lambda *_: None)


def files_named_by(scale: str) -> Iterator[str]:
    """The image files that recipes name; data.root gives their folder."""
    for recipe in map(load, titles()):
        table = recipe.at(scale)
        for values in (table.base, *(part.config for part in (*table.rows, *table.columns))):
            data = values.get("data", {})
            if isinstance(data, dict) and data.get("root"):
                yield data["root"]


# --- every cell is valid ------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
def test_a_dry_run_of_every_recipe(
    scale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole command, except that no image is read and no step is timed."""
    for file in files_named_by(scale):
        (tmp_path / Path(file).name).touch()
    monkeypatch.setattr(cost, "_npz_shape", lambda path: (1000, (8, 8, 1)))
    monkeypatch.setattr(cost, "_npz_styles", lambda path: 8)
    monkeypatch.setattr(Stopwatch, "seconds", lambda self, config, shape: 0.001)
    words = [
        "reproduce",
        "--scale",
        scale,
        "--dry-run",
        "--out",
        str(tmp_path / "out"),
        f"data.root={tmp_path}",
    ]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    having = [name for name in titles() if scale in load(name).scales]
    assert having
    for name in having:
        assert f"{name}, scale {scale}: " in shown
    assert not (tmp_path / "out").exists()


def test_rows_are_the_same_at_scales_smoke_and_paper() -> None:
    for recipe in map(load, titles()):
        assert {row.name for row in recipe.at("smoke").rows} == {row.name for row in recipe.at("paper").rows}


# --- everything they ask for works --------------------------------------------------------------


def check(outcome: Outcome) -> None:
    measure = outcome.cell.measure
    assert outcome.number is not None
    if not measure.lower_is_better and not measure.plain:
        assert outcome.number >= 0
        assert outcome.number <= 100 or measure.number == "variety"  # a ratio
        assert outcome.untrained is not None or measure.kind in ("generate", *MEANS)


def test_the_chosen_runs_cover_all_features(covering: list[list[Cell]]) -> None:
    everything = {feature for cell in all_cells() for feature in features(cell)}
    assert {feature for run in covering for cell in run for feature in features(cell)} == everything


@pytest.mark.usefixtures("no_pictures_of_partitions")
@pytest.mark.parametrize("part", range(PARTS))
def test_runs_of_every_kind(part: int, covering: list[list[Cell]], shared: Path) -> None:
    for run in covering[part::PARTS]:
        for cell in run:
            check(run_cell(cell, shared / "runs" / cell.folder))


# One recipe for each kind of figure, with few runs.
FIGURES = {
    "sweep": "decssl-figure4a",
    "curve of a probe": "fedema-longer",
    "curve of clients": "fedema-figure6",
    "curve of angles": "ldawa-figure4",
    "landscape": "ldawa-figure2",
    "style": "fedstyle-figure4",
}


@pytest.mark.usefixtures("no_pictures_of_partitions")
@pytest.mark.parametrize("name", FIGURES.values(), ids=FIGURES)
def test_a_recipe_with_its_figure(name: str, shared: Path) -> None:
    (results,) = reproduce(name, scale="smoke", seeds=1, out=shared)
    for outcome in results.outcomes:
        check(outcome)
    assert (shared / f"{name}-smoke.md").exists()
    assert (shared / f"{name}-smoke.png").stat().st_size > 1000


def test_there_is_a_recipe_for_every_kind_of_figure() -> None:
    figures = [figure for name in titles() if (figure := load(name).figure)]
    assert {figure.kind for figure in figures} == {load(name).figure.kind for name in FIGURES.values()}
