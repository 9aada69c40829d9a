from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedssl.papers.cells import cells
from fedssl.papers.recipe import Measure, Recipe, load
from fedssl.papers.results import Results
from fedssl.papers.runner import Outcome
from fedssl.papers.table import as_json, markdown, orderings, summary, table

Write = Callable[..., Path]


def results_of(recipe: Recipe, numbers: dict[tuple[str, str], list[float | None]], seeds: int = 3) -> Results:
    outcomes = []
    for cell in cells(recipe, "smoke", seeds, {}):
        number = numbers[cell.row, cell.column][cell.seed]
        error = "ValueError: no luck" if number is None else ""
        untrained = None if number is None else 30.0 + cell.seed
        outcomes.append(Outcome(cell, Path("runs") / cell.folder, number, untrained, 60.0, error))
    return Results(recipe, "smoke", seeds, {"rounds": 3, "data.root": "/my/images"}, outcomes)


NUMBERS: dict[tuple[str, str], list[float | None]] = {
    ("SimCLR", "iid"): [50.0, 51.0, 52.0],
    ("SimCLR", "skewed"): [40.0, 41.0, None],
    ("BYOL", "iid"): [52.0, 52.0, 55.0],
    ("BYOL", "skewed"): [None, None, None],
}


def test_ours_and_the_papers_stand_side_by_side(small: Recipe) -> None:
    assert table(results_of(small, NUMBERS)).splitlines() == [
        "|                   | iid              | paper | skewed           | paper        |",
        "|-------------------|------------------|-------|------------------|--------------|",
        "| SimCLR            | 51.00 ± 1.00 (3) | 70.00 | 40.50 ± 0.71 (2) | 60.00 ± 0.50 |",
        "| BYOL              | 53.00 ± 1.73 (3) | 80.00 | failed           | –            |",
        "| untrained encoder | 31.00 ± 1.00 (3) | –     | 30.50 ± 0.71 (2) | –            |",
    ]


def test_rows_that_have_different_seeds_so_far(small: Recipe) -> None:
    numbers = NUMBERS | {("SimCLR", "iid"): [50.0, None, None], ("BYOL", "iid"): [None, 52.0, None]}
    assert "| untrained encoder | 30.50 ± 0.71 (2) |" in table(results_of(small, numbers))


def test_orderings_are_judged_seed_by_seed(small: Recipe) -> None:
    lines = orderings(results_of(small, NUMBERS)).splitlines()
    assert lines[4] == "| BYOL > SimCLR | iid    | +2.00 ± 1.00 | +10.00 | 0.074 | **held**       |"
    assert lines[5] == "| BYOL > SimCLR | skewed | –            | –      | –     | **no numbers** |"


def test_the_page_says_how_it_came_about(small: Recipe) -> None:
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


def test_encoders_that_begin_differently_are_a_range(small: Recipe) -> None:
    results = results_of(small, {**NUMBERS, ("SimCLR", "iid"): [50.0, None, None]})
    other = [
        Outcome(o.cell, o.path, o.number, 20.0, o.seconds) if o.cell.row == "BYOL" and o.number else o
        for o in results.outcomes
    ]
    changed = Results(small, "smoke", 3, {}, other)
    assert table(changed).splitlines()[-1].split("|")[2].strip() == "20.00 … 30.00"


def test_numbers_as_a_person_writes_them() -> None:
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
    results = results_of(recipe, {("slow", "accuracy"): [9, 8], ("fast", "accuracy"): [3, 4]}, seeds=2)
    (judged,) = results.orderings()
    assert (judged.verdict.word, judged.verdict.mean) == ("held", 5.0)
    assert "| not reached |" in table(results)
    never = results_of(recipe, {("slow", "accuracy"): [infinite] * 2, ("fast", "accuracy"): [3, 4]}, seeds=2)
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
relation = ">="
[[ordering]]
better = "learned"
worse = ["untrained", 50]
"""
    recipe = load(str(write(text)))
    numbers: dict[tuple[str, str], list[float | None]] = {
        ("collapsed", "accuracy"): [30.0, 30.5],  # untrained: 30 and 31
        ("learned", "accuracy"): [40.0, 40.0],
    }
    words = [judged.verdict.word for judged in results_of(recipe, numbers, seeds=2).orderings()]
    assert words == ["held", "held", "not held"]


def test_json_has_the_raw_numbers(small: Recipe) -> None:
    found = as_json(results_of(small, NUMBERS))
    assert [
        cell["number"] for cell in found["cells"] if (cell["row"], cell["column"]) == ("BYOL", "iid")
    ] == [52, 52, 55]
    assert found["paper"]["SimCLR"] == {"iid": [70.0], "skewed": [60.0, 0.5]}
    assert found["orderings"][0]["verdict"] == "held"
    assert found["cells"][-1]["error"] == "ValueError: no luck"
