from __future__ import annotations

import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path

import pytest

from fedssl.errors import ConfigError
from fedssl.evaluation import PROTOCOLS
from fedssl.papers import files
from fedssl.papers.files import folder, recipe_files
from fedssl.papers.recipe import Recipe, load, titles
from fedssl.tables.cells import cells
from fedssl.tables.table import Measure

Write = Callable[..., Path]
ROW = '[[row]]\nname = "a"\n'


def test_a_recipe_is_loaded_from_its_file(small: Recipe) -> None:
    assert (small.name, small.source, small.scales) == ("mine", "Table 1", ("smoke", "mini", "midi", "paper"))
    assert [row.name for row in small.rows] == ["SimCLR", "BYOL"]
    assert small.rows[0].paper == {"iid": (70.0,), "skewed": (60.0, 0.5)}
    table = small.at("smoke")
    assert table.measure_of(table.rows[0], table.columns[0]) == Measure(kind="linear")
    assert small.orderings[0].better == ("BYOL",)


def test_one_column_needs_no_name(write: Write) -> None:
    recipe = load(str(write(f'title = "t"\n{ROW}paper = 79.44\n')))
    assert [column.name for column in recipe.columns] == ["accuracy"]
    assert recipe.rows[0].paper == {"accuracy": (79.44,)}


def test_measures_of_recipe_column_and_row_add_up(write: Write) -> None:
    text = f"""
title = "t"
measure = "rounds-to"
[[column]]
name = "rounds"
[[column]]
name = "epochs"
measure = "epochs-to"
{ROW}measure = {{ target = 0.7 }}
"""
    recipe = load(str(write(text)))
    table = recipe.at("smoke")
    rounds, epochs = (table.measure_of(table.rows[0], column) for column in table.columns)
    assert (rounds.kind, rounds.target) == ("rounds-to", 0.7)
    assert (epochs.kind, epochs.target) == ("epochs-to", 0.7)


def test_a_scale_may_change_the_measure_of_a_column_and_of_a_row(write: Write) -> None:
    text = """
title = "t"
[[column]]
name = "fid"
measure = { kind = "generate", what = "fid", number = "mean" }
scale.mini = { rounds = 7, measure = { config = { count = 20 } } }
[[row]]
name = "a"
scale.mini = { measure = { config = { features = "classifier" } } }
"""
    recipe = load(str(write(text)))
    found = {}
    for scale in ("mini", "paper"):
        table = recipe.at(scale)
        found[scale] = table.measure_of(table.rows[0], table.columns[0])
        assert table.columns[0].config == ({"rounds": 7} if scale == "mini" else {})
    assert found["mini"].config == {"count": 20, "features": "classifier"}
    assert found["paper"].config == {}
    assert found["mini"].number == found["paper"].number == "mean"


def test_extending_merges_key_by_key(write: Write) -> None:
    write('paper = "P"\n[base]\nrounds = 3\ntrain = { lr = 0.1, epochs = 2 }\n', "common.toml")
    text = f'extends = "common"\ntitle = "t"\n[base]\ntrain = {{ lr = 0.2 }}\n{ROW}'
    recipe = load(str(write(text)))
    assert recipe.base == {"rounds": 3, "train": {"lr": 0.2, "epochs": 2}}
    assert recipe.paper == "P"


def test_files_that_extend_each_other_are_an_error(write: Write) -> None:
    write('extends = "b"\n', "a.toml")
    with pytest.raises(ConfigError, match=r"a.toml: extends b.toml, which extends it in turn"):
        load(str(write(f'extends = "a"\ntitle = "t"\n{ROW}', "b.toml")))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f'titel = "t"\n{ROW}', "mine.toml: unknown key 'titel': did you mean title"),
        (f'title = "t"\n{ROW}confg = {{}}\n', "mine.toml: row 'a': unknown key 'confg': did you mean config"),
        (
            f'title = "t"\n[[column]]\nname = "c"\nscals = ["mini"]\n{ROW}',
            "column 'c': unknown key 'scals': did you mean",
        ),
        (f'title = "t"\n{ROW}scales = ["mimi"]\n', "row 'a': scales.0='mimi': did you mean mini"),
        (
            f'title = "t"\n{ROW}paper = {{ acuracy = 1.0 }}\n',
            "unknown column 'acuracy': did you mean accuracy",
        ),
        (f'title = "t"\n{ROW}{ROW}', "mine.toml: two rows 'a'"),
        ('title = "t"\n[[row]]\nname = "untrained"\n', "'untrained' is taken"),
        (f'title = "t"\n{ROW}[[ordering]]\nbetter = "a"\nworse = "A"\n', "ordering 1: unknown row 'A'"),
        (f'title = "t"\n{ROW}[[ordering]]\nbetter = "a"\nworse = 3\ncolumns = ["x"]\n', "unknown column 'x'"),
        (f'title = "t"\n{ROW}[[ordering]]\nbetter = 3\nworse = "untrained"\n', "set at least one row"),
        (f'title = "t"\nmeasure = "linaer"\n{ROW}', "did you mean linear"),
        (f'title = "t"\nmeasure = "rounds-to"\n{ROW}', "rounds-to needs a target"),
        (f'title = "t"\n{ROW}[figure]\nkind = "sweep"\n', "a sweep needs `x`"),
        (f'title = "t"\n{ROW}[figure]\nkind = "curve"\nrows = ["b"]\n', "figure: unknown row 'b'"),
        ('title = "t"\n', "needs at least one [[row]]"),
        ('title = "t"\n[row]\nname = "a"\n', "write [[row]], with two brackets"),
        ("title = \n", "mine.toml: Invalid value"),
    ],
)
def test_a_wrong_recipe_names_the_problem_and_its_place(write: Write, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(str(write(text)))
    assert problem in str(error.value)
    assert "mine.toml" in str(error.value)


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown recipe 'fedema-tabel3': did you mean fedema-table3"):
        load("fedema-tabel3")
    with pytest.raises(ConfigError, match=r"cannot read recipe nowhere.toml"):
        load("nowhere.toml")


# --- the recipes that come with the package -----------------------------------------------------


def test_every_table_and_figure_of_fedema_has_a_recipe() -> None:
    sources = " ".join(load(name).source for name in titles())
    tables = [f"Table {number}" for number in range(1, 13)]
    figures = [
        "Figure 2",
        "Figure 3",
        "Figure 5",
        "Figure 6",
        "Figure 7a",
        "Figure 7b",
        "Figure 7c",
        "Figure 9",
    ]
    for wanted in [*tables, *figures, "Figure 10a", "Figure 10b"]:
        assert wanted in sources


def test_every_table_and_figure_of_fedstyle_has_a_recipe() -> None:
    sources = [load(name).source for name in titles() if name.startswith("fedstyle")]
    wanted = [*(f"FedStyle, Table {number}" for number in (1, 2, 3, 4)), "FedStyle, Figure 4"]
    assert set(wanted) < set(sources)


# Recipes of the five papers that need images which come with no scale below the paper's.
OTHER_IMAGES = {
    "decssl-figure8e": "CIFAR-100, Tiny ImageNet",
    "decssl-table4": "STL-10",
    "fedema-table8": "CIFAR-100",
    "ldawa-table5": "Tiny ImageNet",
    "ldawa-table7": "Tiny ImageNet",
    "padpaf-figure18": "CelebA",
    "padpaf-figure19": "CelebA",
}


def test_tables_with_available_images_have_a_small_scale() -> None:
    papers = ("fedema-", "ldawa-", "decssl-", "fedstyle-", "padpaf-")
    without = {
        name for name in titles() if name.startswith(papers) and not {"mini", "midi"} & set(load(name).scales)
    }
    assert without == OTHER_IMAGES.keys()


def test_recipes_are_listed_in_the_order_of_their_numbers() -> None:
    names = list(titles())
    assert names.index("fedema-table2") < names.index("fedema-table10")
    assert "fedema-common" in recipe_files()
    assert "fedema-common" not in names


def test_listing_recipes_does_not_load_torch() -> None:
    code = (
        "import sys; from fedssl.papers.recipe import titles; titles(); "
        "from fedssl.papers import reproduce; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_measures_are_the_protocols_and_the_counts() -> None:
    kinds = set(typing.get_args(Measure.model_fields["kind"].annotation))
    assert kinds == {
        *PROTOCOLS,
        "classifier",
        "rounds-to",
        "epochs-to",
        "oscillation",
        "drift",  # from the received model, as metrics.jsonl has it
        "angle-weights",  # L-DAWA's δ by kind
        "angle-gamma",
        "angle-beta",
        "mu-capped",  # FedEMA's clients with μ = 1
        "predictor-replaced",  # FedU's
        "generate",
    } | {
        "drift-from-mean",  # of the protocol `drift`
        "segmentation",  # of the protocol `detection`
    }


# The paper's own tables disagree on a few runs that have the same description.
OTHER_NUMBERS = {
    ("fedema-table2", "FedBYOL", "l = 10 (IID)"),
    ("fedema-table2", "FedSimSiam", "l = 10 (IID)"),
    ("fedema-figure7c", "FedBYOL", "l = 10 (IID)"),
    ("fedema-figure9", "FedBYOL", "R = 100"),
    ("fedema-table12", "FedBYOL", "K = 5, 100 %"),
    ("fedema-table12", "FedEMA (autoscaler)", "K = 5, 100 %"),
    ("fedstyle-table4", "λ = 0.5", "Adaptiope SimSiam, personalization"),
    ("ldawa-table3", "SimCLR, FedAvg", "α = 0.1, E = 10"),
    ("ldawa-table4", "SimCLR, FedAvg", "α = 0.1"),
    ("ldawa-table4", "Barlow Twins, FedAvg", "α = 0.1"),
}


def test_a_run_in_several_tables_has_one_number_in_the_paper() -> None:
    seen: dict[tuple[str, str], dict[float, str]] = {}  # by run and measure
    for name in titles():
        recipe = load(name)
        for cell in cells(recipe.at("paper"), 1, {}):
            paper = recipe.at("paper").row(cell.row).paper.get(cell.column)
            if (
                paper
                and not cell.measure.lower_is_better
                and (name, cell.row, cell.column) not in OTHER_NUMBERS
            ):
                key = (cell.folder, cell.measure.model_dump_json())
                seen.setdefault(key, {})[paper[0]] = f"{name}: {cell.row}, {cell.column}"
    assert len(seen) > 100
    assert [places for places in seen.values() if len(places) > 1] == []


def test_recipes_are_in_the_package_when_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder().name == "recipes"
    (tmp_path / "recipes").mkdir()
    monkeypatch.setattr(files, "__file__", str(tmp_path / "papers" / "files.py"))
    assert folder() == tmp_path / "recipes"


def test_the_example_of_the_documentation_is_a_recipe(write: Write) -> None:
    page = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
    recipe = load(str(write(page.split("```toml\n# mine.toml")[1].split("```")[0])))
    assert len(cells(recipe.at("smoke"), 2, {})) == 8
    iid, skewed = (cell.config for cell in cells(recipe.at("paper"), 1, {})[2:])
    assert (iid.partition.scheme, skewed.partition.scheme, iid.method.name, iid.rounds) == (
        "iid",
        "classes",
        "fedema",
        100,
    )
