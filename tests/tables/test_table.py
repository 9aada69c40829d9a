from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fedssl.papers.recipe import Recipe, load
from fedssl.tables import markdown as pages
from fedssl.tables.cells import cells
from fedssl.tables.markdown import orderings, summary
from fedssl.tables.page import markdown
from fedssl.tables.raw import as_json
from fedssl.tables.results import Results
from fedssl.tables.runner import Outcome
from fedssl.tables.table import Measure, Table
from tests.tables.conftest import SMALL

Write = Callable[..., Path]


def results_of(
    recipe: Recipe | Table,
    numbers: Mapping[tuple[str, str], Sequence[float | None]],
    seeds: int = 3,
    first_seed: int = 0,
) -> Results:
    outcomes = []
    table = recipe.at("smoke") if isinstance(recipe, Recipe) else recipe
    for cell in cells(table, seeds, {}, first_seed):
        number = numbers[cell.row, cell.column][cell.seed - first_seed]
        error = "ValueError: no luck" if number is None else ""
        untrained = None if number is None else 30.0 + cell.seed
        outcomes.append(Outcome(cell, Path("runs") / cell.folder, number, untrained, 60.0, error))
    overrides = {"rounds": 3, "data.root": "/my/images"}
    return Results(table, seeds, overrides, outcomes, first_seed)


NUMBERS: dict[tuple[str, str], list[float | None]] = {
    ("SimCLR", "iid"): [50.0, 51.0, 52.0],
    ("SimCLR", "skewed"): [40.0, 41.0, None],
    ("BYOL", "iid"): [52.0, 52.0, 55.0],
    ("BYOL", "skewed"): [None, None, None],
}


def test_our_numbers_are_next_to_the_papers(small: Recipe) -> None:
    assert pages.table(results_of(small, NUMBERS)).splitlines() == [
        "|                   | iid              | paper | skewed           | paper        |",
        "|-------------------|------------------|-------|------------------|--------------|",
        "| SimCLR            | 51.00 ± 1.00 (3) | 70.00 | 40.50 ± 0.71 (2) | 60.00 ± 0.50 |",
        "| BYOL              | 53.00 ± 1.73 (3) | 80.00 | failed           | –            |",
        "| untrained encoder | 31.00 ± 1.00 (3) | –     | 30.50 ± 0.71 (2) | –            |",
    ]


def test_rows_that_have_different_seeds_so_far(small: Recipe) -> None:
    numbers = NUMBERS | {("SimCLR", "iid"): [50.0, None, None], ("BYOL", "iid"): [None, 52.0, None]}
    assert "| untrained encoder | 30.50 ± 0.71 (2) |" in pages.table(results_of(small, numbers))


def test_orderings_are_judged_seed_by_seed(small: Recipe) -> None:
    lines = orderings(results_of(small, NUMBERS)).splitlines()
    assert lines[2] == "**0 of 2 held, 0 not held, 2 undecided.**"
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    assert cells[0] == ["claim", "where", "better by", "interval", "paper", "p", "p (Holm)", "n", "verdict"]
    # t = 2√3 with 2 degrees of freedom; the interval is of 97.5 %, since two comparisons are open: t = 6.205.
    assert cells[2] == [
        "BYOL > SimCLR",
        "iid",
        "+2.00 ± 1.00",
        "[-1.58, +5.58]",
        "+10.00",
        "0.074",
        "0.148",
        "3",
        "**undecided**; could have shown 3.58",
    ]
    assert cells[3][2:7] == ["–"] * 5
    assert cells[3][7] == (
        "0 of 3: seed 0 failed (BYOL · skewed), seed 1 failed (BYOL · skewed), "
        "seed 2 failed (BYOL · skewed), seed 2 failed (SimCLR · skewed)"
    )
    assert cells[3][8] == "**undecided**"


def test_verdicts_with_six_seeds(small: Recipe) -> None:
    numbers: dict[tuple[str, str], list[float | None]] = {
        ("SimCLR", "iid"): [50.0, 51.0, 52.0, 50.0, 51.0, None],
        ("SimCLR", "skewed"): [50.0, 51.0, 52.0, 50.0, 51.0, 52.0],
        ("BYOL", "iid"): [52.0, 53.1, 53.9, 52.0, 53.0, 54.0],
        ("BYOL", "skewed"): [48.0, 49.1, 49.9, 48.0, 49.0, 50.0],
    }
    text = orderings(results_of(small, numbers, seeds=6))
    assert "**1 of 2 held, 1 not held, 0 undecided.**" in text
    assert "p (sign flips)" in text
    iid, skewed = [line for line in text.splitlines() if line.startswith("| BYOL")]
    assert "| 0.062 " in iid  # 2 of 32 sign patterns
    assert "| 5 of 6: seed 5 failed (SimCLR · iid) | **held**" in iid
    assert "| 0.031 " in skewed
    assert "| **not held**" in skewed


def test_parts_of_a_claim_are_listed_below_it(write: Write) -> None:
    text = SMALL + 'claim = "mostly"\nat_least = 1\n'
    lines = orderings(results_of(load(str(write(text))), NUMBERS)).splitlines()
    assert lines[2] == "**0 of 1 held, 0 not held, 1 undecided.**"
    assert lines[6].startswith("| mostly: at least 1 of 2: BYOL > SimCLR |")
    assert "| 0 of 2 held, 0 not held, 2 undecided |" in lines[6]
    assert lines[7].startswith("| – BYOL > SimCLR ")
    assert "**" not in lines[7]


def test_a_claim_that_the_paper_contradicts_is_marked(write: Write) -> None:
    text = SMALL.replace("paper = { iid = 80.0 }", "paper = { iid = 69.0 }")
    lines = orderings(results_of(load(str(write(text))), NUMBERS)).splitlines()
    assert "the paper's own numbers contradict this" in lines[6]
    assert "contradict" not in lines[7]


def test_tuning_and_parts_are_labeled(small: Recipe) -> None:
    results = results_of(small.at("smoke").select(rows="BYOL"), NUMBERS, first_seed=1000)
    tuning = replace(results, selection={"rows": "BYOL"})
    page = markdown(tuning)
    assert page.startswith("# Table 1: a comparison (tuning)\n")
    assert "Scale `smoke`, tuning seeds 1000 to 1002: mean" in page
    assert '--seeds 3 --first-seed 1000 --rows "BYOL" rounds=3' in page
    assert "A part of the table: rows were selected." in page
    assert "| SimCLR" not in page
    assert tuning.file_name == "mine-smoke-part-tuning"
    assert as_json(tuning)["tuning"] is True
    later = results_of(small, NUMBERS, first_seed=6)
    assert "Scale `smoke`, seeds 6 to 8: mean" in markdown(later)
    assert later.file_name == "mine-smoke"


def test_the_page_says_how_to_repeat_it(small: Recipe) -> None:
    page = markdown(results_of(small, NUMBERS), "mine-smoke.png")
    assert page.startswith("# Table 1: a comparison\n")
    assert "    fedssl reproduce mine --scale smoke --seeds 3 rounds=3 data.root=FOLDER\n" in page
    assert (
        "Scale `smoke`, 3 seeds: mean ± standard deviation (seeds). Accuracy of the linear probe, %." in page
    )
    assert "![a comparison](mine-smoke.png)" in page
    assert "- BYOL · skewed · seed 2: ValueError: no luck" in page
    assert "    rounds = 3\n" in page
    assert "/my/images" not in page
    assert "    train.batch_size = 16\n" in page
    assert '- row BYOL: `objective.name = "byol"`' in page
    assert '- column skewed: `partition.scheme = "classes"`, `partition.classes = 2`' in page
    assert "8 runs, 8m00s of training." in page


def test_different_untrained_encoders_are_a_range(small: Recipe) -> None:
    results = results_of(small, {**NUMBERS, ("SimCLR", "iid"): [50.0, None, None]})
    other = [
        Outcome(o.cell, o.path, o.number, 20.0, o.seconds) if o.cell.row == "BYOL" and o.number else o
        for o in results.outcomes
    ]
    changed = Results(small.at("smoke"), 3, {}, other)
    assert pages.table(changed).splitlines()[-1].split("|")[2].strip() == "20.00 … 30.00"


def test_numbers_are_formatted_for_readers() -> None:
    rounds = Measure(kind="rounds-to", target=0.7)
    assert summary([83.344], Measure()) == "83.34 (1)"
    assert summary([1.0, 3.0], Measure()) == "2.00 ± 1.41 (2)"
    assert summary([40, 42], rounds) == "41.0 ± 1.4 (2)"
    assert summary([40, float("inf")], rounds) == "not reached in 1 of 2"
    assert summary([float("inf")] * 2, rounds) == "not reached (2)"


def test_fewer_rounds_are_better(write: Write) -> None:
    text = """
title = "t"
measure = { kind = "rounds-to", target = 0.5 }
[[row]]
name = "slow"
paper = inf
[[row]]
name = "fast"
paper = 40
[[ordering]]
better = "fast"
worse = "slow"
"""
    recipe = load(str(write(text)))
    infinite = float("inf")
    results = results_of(recipe, {("slow", "accuracy"): [9, 8, 10], ("fast", "accuracy"): [3, 3, 4]})
    (judged,) = results.orderings()
    assert (judged.verdict.word, judged.verdict.mean) == ("held", pytest.approx(17 / 3))
    assert "| not reached |" in pages.table(results)
    never = results_of(
        recipe, {("slow", "accuracy"): [infinite] * 6, ("fast", "accuracy"): [3, 4, 3, 3, 4, 5]}, seeds=6
    )
    assert "| only one side reached it |" in orderings(never)
    assert never.orderings()[0].verdict.word == "held"
    assert as_json(never)["cells"][0]["number"] is None


def test_the_untrained_encoder_can_be_a_side(write: Write) -> None:
    text = """
title = "t"
[[row]]
name = "collapsed"
[[row]]
name = "learned"
[[ordering]]
better = "untrained"
worse = "collapsed"
within = 0.5
[[ordering]]
better = "learned"
worse = ["untrained", 50]
"""
    recipe = load(str(write(text)))
    numbers: dict[tuple[str, str], list[float | None]] = {
        ("collapsed", "accuracy"): [29.0, 30.1, 30.9],  # untrained: 30, 31 and 32
        ("learned", "accuracy"): [40.0, 41.1, 41.9],
    }
    words = [judged.verdict.word for judged in results_of(recipe, numbers).orderings()]
    assert words == ["held", "held", "not held"]


def test_json_has_the_raw_numbers(small: Recipe) -> None:
    found = as_json(results_of(small, NUMBERS))
    assert [
        cell["number"] for cell in found["cells"] if (cell["row"], cell["column"]) == ("BYOL", "iid")
    ] == [52, 52, 55]
    assert found["paper"]["SimCLR"] == {"iid": [70.0], "skewed": [60.0, 0.5]}
    (iid, skewed) = found["orderings"]
    assert (iid["verdict"], iid["n"], iid["difference"], iid["paper"]) == ("undecided", 3, 2.0, 10.0)
    assert iid["interval"] == pytest.approx([2 - iid["detectable"], 2 + iid["detectable"]])
    assert "BYOL · skewed · seed 0" in skewed["failed"]
    assert (skewed["n"], skewed["interval"], skewed["p"]) == (0, None, None)
    assert found["summary"] == "0 of 2 held, 0 not held, 2 undecided"
    assert found["cells"][-1]["error"] == "ValueError: no luck"
