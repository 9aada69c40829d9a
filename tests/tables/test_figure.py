from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
import pytest
from PIL import Image

from fedssl.papers import reproduce
from fedssl.papers.recipe import Recipe, load
from fedssl.statistics import Summary
from fedssl.tables import measure
from fedssl.tables.cells import cells
from fedssl.tables.figure import bar_chart, curves, draw, levels, papers, sweeps
from fedssl.tables.results import Results
from fedssl.tables.runner import Outcome
from fedssl.tables.store import Number
from fedssl.tables.table import Figure, Table
from tests.tables.conftest import SMALL, FakeTraining

Write = Callable[..., Path]

SWEEP = """
title = "t"
source = "Figure 1"
[[row]]
name = "λ = 0"
x = 0
group = "FedEMA"
paper = 60
[[row]]
name = "λ = 1"
x = 1
group = "FedEMA"
[[row]]
name = "FedBYOL"
[figure]
kind = "sweep"
x_label = "scaler λ"
"""


def results_of(recipe: Recipe, numbers: dict[str, list[float]], runs: Path = Path("runs")) -> Results:
    outcomes = [
        Outcome(cell, runs / cell.folder, numbers[cell.row][cell.seed])
        for cell in cells(recipe.at("smoke"), 2, {})
    ]
    return Results(recipe.at("smoke"), 2, {}, outcomes)


def figure_of(table: Table) -> Figure:
    assert table.figure is not None
    return table.figure


@pytest.fixture
def swept(write: Write) -> Results:
    # One config for all would be one run; here only the numbers matter.
    recipe = load(str(write(SWEEP)))
    return results_of(recipe, {"λ = 0": [50.0, 52.0], "λ = 1": [60.0, 61.0], "FedBYOL": [40.0, 50.0]})


def test_a_sweep_over_rows_is_a_line_for_each_group(swept: Results) -> None:
    figure = figure_of(swept.table)
    assert sweeps(swept, figure) == {"FedEMA": {0.0: [50.0, 52.0], 1.0: [60.0, 61.0]}}
    assert papers(swept, figure) == {"FedEMA": {0.0: 60.0}}
    assert levels(swept, figure) == {"FedBYOL": 45.0}


def test_a_sweep_over_columns_is_a_line_for_each_row(write: Write) -> None:
    columns = "".join(f'[[column]]\nname = "l = {x}"\nx = {x}\n' for x in (2, 4))
    rows = '[[row]]\nname = "a"\n[[row]]\nname = "b"\n'
    recipe = load(str(write(f'title = "t"\n{columns}{rows}[figure]\nkind = "sweep"\nrows = ["b"]\n')))
    results = results_of(recipe, {"a": [1.0, 2.0], "b": [3.0, 4.0]})
    assert sweeps(results, figure_of(recipe.at("smoke"))) == {"b": {2.0: [3.0, 4.0], 4.0: [3.0, 4.0]}}
    assert levels(results, figure_of(recipe.at("smoke"))) == {}


@pytest.fixture
def curved(write: Write, tmp_path: Path) -> Results:
    text = (
        'title = "t"\nsource = "Figure 2"\n[[row]]\nname = "a"\n[figure]\nkind = "curve"\ny = "probe.knn"\n'
    )
    results = results_of(load(str(write(text))), {"a": [1.0, 2.0]}, tmp_path)
    for outcome in results.outcomes:
        outcome.path.mkdir()
        lines = [
            {
                "round": number,
                "clients": [{"client": k, "mu": number + k} for k in range(2)],
                **({"probe": {"knn": 0.1 * number + outcome.cell.seed}} if number % 2 else {}),
            }
            for number in (1, 2, 3)
        ]
        (outcome.path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return results


def test_a_sweep_over_one_number_is_bars(write: Write, tmp_path: Path) -> None:
    rows = '[[row]]\nname = "IID"\n[[row]]\nname = "α = 1"\nx = 1\ngroup = "skewed"\npaper = { one = 7 }\n'
    columns = '[[column]]\nname = "one"\n[[column]]\nname = "other"\n'
    recipe = load(str(write(f'title = "t"\n{columns}{rows}[figure]\nkind = "sweep"\n')))
    results = results_of(recipe, {"IID": [1.0, 2.0], "α = 1": [3.0, 5.0]})
    axes = matplotlib.figure.Figure().add_subplot()
    bar_chart(axes, results, figure_of(recipe.at("smoke")))
    bars = {round(bar.get_x() + bar.get_width() / 2, 3): bar.get_height() for bar in axes.patches}
    assert bars == {-0.2: 1.5, 0.2: 1.5, 0.8: 4.0, 1.2: 4.0}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["IID", "α = 1"]
    assert axes.get_legend_handles_labels()[1] == ["one", "other"]
    assert [float(line.get_ydata()[0]) for line in axes.lines if line.get_marker() == "x"] == [7.0]
    assert draw(results, tmp_path / "bars.png")


def test_curves_are_read_from_the_metrics_of_every_seed(curved: Results) -> None:
    found = curves(curved, figure_of(curved.table))
    assert found == {"a": {1: [0.1, 1.1], 3: [pytest.approx(0.3), pytest.approx(1.3)]}}


def test_a_curve_can_be_drawn_for_every_client(curved: Results) -> None:
    found = curves(curved, Figure(kind="curve", y="clients.mu"))
    assert found == {
        "client 0": {1: [1, 1], 2: [2, 2], 3: [3, 3]},
        "client 1": {1: [2, 2], 2: [3, 3], 3: [4, 4]},
    }
    assert curves(curved, Figure(kind="curve", y="clients.nothing")) == {}


@pytest.mark.parametrize("which", ["swept", "curved"])
def test_the_picture_is_drawn(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    file = tmp_path / "figure.png"
    assert draw(request.getfixturevalue(which), file)
    pixels = np.asarray(Image.open(file).convert("RGB"))
    assert pixels.shape[0] > 400
    blue = (abs(pixels.astype(int) - (31, 119, 180)).sum(axis=2) < 30).sum()  # matplotlib's first color
    assert blue > 100


def test_no_data_means_no_picture(swept: Results, tmp_path: Path) -> None:
    empty = Results(swept.table, 2, {}, [])
    assert not draw(empty, tmp_path / "figure.png")
    assert not (tmp_path / "figure.png").exists()


def test_published_means_are_drawn_with_their_spread(write: Write, tmp_path: Path) -> None:
    table = load(str(write(SWEEP))).at("smoke")
    means = {
        ("λ = 0", "accuracy"): Number(number=60.0, spread=1.5, n=3),
        ("FedBYOL", "accuracy"): Number(number=55.0, spread=0.5, n=3),
    }
    results = Results(table, 3, {}, [], means=means)
    assert table.figure is not None
    assert sweeps(results, table.figure) == {"FedEMA": {0: Summary(60.0, 1.5, 3)}}
    assert levels(results, table.figure) == {"FedBYOL": 55.0}
    assert draw(results, tmp_path / "a.png")


# --- pictures of runs -----------------------------------------------------------------------------


def test_pages_show_the_pictures_of_runs_and_name_them(
    write: Callable[..., Path], training: FakeTraining, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A picture for each evaluation of a run, for the first seed only."""

    def generate(path: Path, what: str, options: Mapping[str, Any]) -> dict[str, Any]:
        file = path / "generated" / f"{what}{len(options)}.png"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"")
        found = {"picture": str(file), "mean": 0.5}
        with open(path / "generated.jsonl", "a") as opened:
            opened.write(json.dumps({"what": what, "options": dict(options), "found": found}) + "\n")
        return found

    monkeypatch.setattr(measure, "generate", generate)
    asked = 'measure = { kind = "generate", what = "labels", number = "mean" }\n[base]'
    other = 'name = "skewed"\nmeasure = { config = { rows = 2 } }'
    text = SMALL.replace("[base]", asked).replace('name = "skewed"', other)
    reproduce(str(write(text)), seeds=2, out=tmp_path / "out")
    page = (tmp_path / "out" / "mine-smoke.md").read_text()
    shown = re.findall(r"!\[(.*?), labels: run (.*?)\]\((.*?)\)", page)
    assert [row for row, _, _ in shown] == ["SimCLR", "SimCLR", "BYOL", "BYOL"]
    assert {file for _, _, file in shown} == {
        f"runs/{run}/generated/labels{number % 2}.png" for number, (_, run, _) in enumerate(shown)
    }
    assert all("-s0-" in run for _, run, _ in shown)
    assert all((tmp_path / "out" / file).is_file() for _, _, file in shown)
