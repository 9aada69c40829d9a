"""The published pages match the store; a page that was edited by hand or is out of date fails."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from fedssl.errors import ConfigError
from fedssl.papers import reproduce
from fedssl.papers.pages import PICTURES, Pages
from fedssl.papers.recipe import load, titles
from fedssl.papers.scoreboard import PAPERS, lines
from fedssl.papers.stored import Stored
from fedssl.storage import read_lines
from fedssl.tables.cells import cells, portable
from fedssl.tables.orderings import groups
from fedssl.tables.store import Number, Place, Record, append

ROOT = Path(__file__).parents[2]
CELLS = ROOT / "docs" / "results" / "cells"
TABLE = "<!-- stored: table fedema-longer mini -->\n\n<!-- end -->\n"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    return Pages(ROOT, tmp_path_factory.mktemp("pictures"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the store and one page."""
    shutil.copytree(CELLS, tmp_path / "docs" / "results" / "cells")
    (tmp_path / "README.md").write_text("A line of our own.\n")
    (tmp_path / "docs" / "results" / "page.md").write_text(f"Before.\n\n{TABLE}\nAfter.\n")
    return tmp_path


def test_pages_match_the_store(published: Pages) -> None:
    """Every table is rebuilt as from a fresh clone, without runs and without training."""
    different = [file.name for file in published.files() if published.filled(file) != file.read_text()]
    assert not different, f"{different}: run `make results`"
    pages = [file.read_text() for file in (ROOT / "docs" / "results").glob("*.md")]
    linked = {name for page in pages for name in re.findall(r"\(pictures/(\S+?\.png)\)", page)}
    drawn = {file.name for file in published.pictures.glob("*.png")}
    assert drawn
    assert drawn <= linked
    assert linked == {file.name for file in (ROOT / PICTURES).glob("*.png")}


def test_every_stored_result_is_on_a_page(published: Pages) -> None:
    shown = published.tables()
    for file in sorted(CELLS.glob("*.jsonl")):
        for line in read_lines(file):
            places = [line] if "text" in line else line["places"]
            assert any((place["table"], place["scale"]) in shown for place in places), places


def test_the_scoreboard_links_to_tables_on_pages() -> None:
    folder = ROOT / "docs" / "results"
    links = re.findall(r"\]\((\S+?\.md)#(\S+?)\)", (folder / "index.md").read_text())
    assert links
    for page, anchor in set(links):
        assert f"\n### {anchor.replace('-at-scale-', ' at scale ')}\n" in (folder / page).read_text()


def test_a_page_edited_by_hand_is_detected_and_fixed(checkout: Path) -> None:
    pages, page = Pages(checkout), checkout / "docs" / "results" / "page.md"
    assert pages.write() == [page]
    made = page.read_text()
    assert "| FedBYOL             | 40.05 ± 0.90 (3)† |" in made
    assert made.startswith("Before.\n")
    assert made.endswith("\nAfter.\n")
    assert pages.write() == []
    page.write_text(made.replace("40.99", "41.99"))
    assert pages.filled(page) == made
    page.write_text(made.replace("After", "Later"))  # the prose is ours
    assert pages.filled(page) == page.read_text()


def test_a_new_line_in_the_store_makes_the_page_out_of_date(checkout: Path) -> None:
    page = checkout / "docs" / "results" / "page.md"
    Pages(checkout).write()
    finish(checkout, "fedema-longer", "mini", "FedBYOL", 41.5, range(2))
    assert Pages(checkout).write() == [page]
    assert "| FedBYOL             | 41.50 ± 0.00 (2)  |" in page.read_text()


def finish(checkout: Path, name: str, scale: str, row: str, number: float, seeds: range) -> None:
    """Lines of the store for runs of a row, in its last column."""
    table = load(name).at(scale)  # type: ignore[arg-type]
    column = table.columns[-1].name
    for cell in cells(table, len(seeds), {}, seeds.start, need_images=False):
        if (cell.row, cell.column) == (row, column):
            record = Record(
                config=portable(cell.config),
                seed=cell.seed,
                numerics=99,
                places=(Place(table=name, scale=scale, row=row, column=column),),
                numbers=(Number(number=number, untrained=30.0),),
                curves={"probe.knn": {"0": [[1], [0.3]]}},
            )
            file = checkout / "docs" / "results" / "cells" / f"fedema-{scale}.jsonl"
            append(file, record.model_dump_json(exclude_defaults=True))


@pytest.mark.parametrize(
    "what", ["tables fedema-longer mini", "table fedema-longer", "table fedema-longer maxi", "summary 1"]
)
def test_an_unknown_block_is_an_error(checkout: Path, what: str) -> None:
    (checkout / "README.md").write_text(f"<!-- stored: {what} -->\n<!-- end -->\n")
    with pytest.raises(ConfigError, match=rf"README.md: no such block: {what}"):
        Pages(checkout).write()


# --- the scoreboard -------------------------------------------------------------------------------


@pytest.mark.parametrize("paper", list(PAPERS))
def test_every_ordering_of_a_paper_is_counted_once(published: Pages, paper: str) -> None:
    found: dict[str, set[object]] = {}
    for line in lines(published.stored, paper):
        found.setdefault(line.recipe.name, set()).add(line.claim)
    for name in recipes(paper):
        recipe = load(name)
        assert found.get(name, set()) == {ordering.claim for ordering in recipe.orderings}
        comparisons = {
            (number, *((group.ordering.at_least,) if group.ordering.at_least else (one.text, one.where)))
            for scale in recipe.scales
            if scale != "smoke"
            for group in groups(recipe.at(scale))
            for number, ordering in enumerate(recipe.orderings)
            if ordering == group.ordering
            for one in group.comparisons
        }
        counted = sum(line.comparisons for line in lines(published.stored, paper) if line.recipe.name == name)
        assert counted == len(comparisons)


def recipes(paper: str) -> list[str]:
    return [name for name in titles() if name.startswith(f"{paper}-")]


def test_the_largest_scale_with_two_seeds_counts(checkout: Path) -> None:
    def line() -> tuple[str, int]:
        (found,) = (
            (line.scale, line.judged.verdict.n)
            for line in lines(Stored(checkout / "docs" / "results" / "cells"), "fedema")
            if line.recipe.name == "fedema-table3"
            and line.judged is not None
            and line.judged.text == "FedEMA (autoscaler) > FedBYOL"
            and line.judged.where == "CIFAR-10 non-IID"
        )
        return found

    (checkout / "docs" / "results" / "cells" / "fedema-midi.jsonl").unlink(missing_ok=True)
    assert line() == ("mini", 3)
    for seed, expected in ((0, ("mini", 3)), (1, ("midi", 2))):
        for row in ("FedBYOL", "FedEMA (autoscaler)"):
            finish(checkout, "fedema-table3", "midi", row, 40.0 + seed, range(seed, seed + 1))
        assert line() == expected


def test_differences_whose_sides_do_not_count_are_out_of_date(published: Pages) -> None:
    """FedStyle's were measured with a diverged generator, which the store only records for the numbers."""
    old = [line for line in lines(published.stored, "fedstyle") if line.was is not None]
    assert {(line.judged.text, line.judged.where) for line in old if line.judged} <= {
        (difference.text, difference.where)
        for difference in published.stored.archive.store.differences
        if difference.table == "fedstyle-table1"
    }
    assert all(line.judged is not None and line.judged.verdict.n == 0 for line in old)
    counted = f"; {len(old)} more are out of date" if old else "comparisons are measured"
    assert counted in (ROOT / "docs" / "results" / "index.md").read_text()


def test_the_summary_is_on_the_front_page() -> None:
    text = (ROOT / "README.md").read_text()
    assert re.search(r"\d+ of the five papers' \d+ comparisons are measured: \d+ held, \d+ not held", text)
    assert len(text.splitlines()) <= 110


# --- the command ----------------------------------------------------------------------------------


def test_stored_tables_are_made_without_training_to_the_same_numbers(tmp_path: Path) -> None:
    """Without names: every table of the scale with stored results."""
    stored = Stored(CELLS)
    found = reproduce(stored=True, scale="mini", out=tmp_path)
    assert [results.table.name for results in found] == stored.names("mini")
    assert not (tmp_path / "runs").exists()
    for results in found:
        assert (tmp_path / f"{results.file_name}.md").is_file()
        written = json.loads((tmp_path / f"{results.file_name}.json").read_text())
        assert [(mean["row"], mean["column"], mean["number"]) for mean in written["published"]] == [
            (row, column, mean.number) for (row, column), mean in results.means.items()
        ]
    assert (tmp_path / "decssl-figure6a-mini.png").is_file()
