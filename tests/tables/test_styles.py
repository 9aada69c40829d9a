"""Recipes of data with styles: numbers of one style, gains of columns, and what a dry run counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from fedssl.config import load as load_config
from fedssl.data.options import DataConfig
from fedssl.errors import ConfigError, RunError
from fedssl.papers.panels import draw_styles, panels_of
from fedssl.papers.recipe import load, titles
from fedssl.tables.cells import cells
from fedssl.tables.cost import Images, Stopwatch, images, plan
from fedssl.tables.dryrun import DryRun
from fedssl.tables.measure import read_number
from fedssl.tables.orderings import comparisons
from fedssl.tables.results import Results
from fedssl.tables.runner import Outcome
from fedssl.tables.store import Record
from fedssl.tables.table import Measure

Write = Callable[..., Path]

GAINS = """
title = "t"
[[column]]
name = "easy"
config = { seed = 1 }
[[column]]
name = "hard"
config = { seed = 2 }
[[row]]
name = "plain"
config = { method = "fedavg" }
paper = { easy = 90, hard = 50 }
[[row]]
name = "styled"
config = { method = "fedstyle" }
paper = { easy = 91, hard = 56 }
[[ordering]]
better = "hard"
worse = "easy"
over = "plain"
"""


def test_the_number_of_one_style(tmp_path: Path) -> None:
    entry = {
        "protocol": "personal",
        "overrides": {},
        "accuracy": 0.6,
        "untrained": 0.3,
        "styles": [
            {"style": "mnist", "accuracy": 0.9, "untrained": 0.5},
            {"style": "svhn", "accuracy": 0.3, "untrained": 0.1},
        ],
    }
    (tmp_path / "result.json").write_text(json.dumps({"probes": []}))
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(entry) + "\n")
    assert read_number(tmp_path, Measure(kind="personal")).number == 60.0
    svhn = read_number(tmp_path, Measure(kind="personal", style="svhn"))
    assert (svhn.number, svhn.untrained) == (30.0, 10.0)
    with pytest.raises(RunError, match="personal has no style 'mnits': did you mean mnist"):
        read_number(tmp_path, Measure(kind="personal", style="mnits"))


def test_columns_are_compared_by_their_gain_over_a_row(write: Write) -> None:
    text = GAINS.replace("config = { seed = 1 }\n", "").replace("config = { seed = 2 }\n", "")
    recipe = load(str(write(text)))
    (comparison,) = comparisons(recipe.at("smoke"))
    assert comparison.text == "hard > easy in gain over plain"
    assert comparison.where == "styled"
    numbers = {"plain": {"easy": (80, 82), "hard": (40, 41)}, "styled": {"easy": (83, 84), "hard": (45, 46)}}
    outcomes = [
        Outcome(cell, Path("runs"), float(numbers[cell.row][cell.column][cell.seed]))
        for cell in cells(recipe.at("smoke"), 2, {})
    ]
    (judged,) = Results(recipe.at("smoke"), 2, {}, outcomes).orderings()
    # Hard gains 5 and 5, easy 3 and 2: better by 2 and 3; in the paper 6 − 1.
    assert judged.verdict.mean == pytest.approx(2.5)
    assert judged.verdict.word == "undecided"
    assert (judged.paper, judged.contradicted) == (5, False)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('over = "plain"', 'over = "plian"', "over: unknown row 'plian': did you mean plain"),
        ('better = "hard"\nworse = "easy"', 'better = "styled"\nworse = "plain"', "set columns"),
    ],
)
def test_a_gain_over_nothing_is_an_error(write: Write, old: str, new: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load(str(write(GAINS.replace(old, new))))


def test_a_dry_run_counts_joined_sets_and_the_clients_of_every_style(tmp_path: Path) -> None:
    np.savez(tmp_path / "usps_train.npz", x=np.zeros((30, 16, 16), np.uint8), y=np.zeros(30, np.uint8))
    joined = DataConfig(name="mnist+usps", root=str(tmp_path))
    assert images(joined) == Images(60_030, (28, 28, 1), styles=2)  # MNIST as it is known
    assert images(joined.model_copy(update={"limit": 40, "size": 32})) == Images(40, (32, 32, 1), styles=2)
    assert images(DataConfig(name="usps+elsewhere")) is None
    x, domain = np.zeros((9, 4, 4, 3), np.uint8), np.arange(9) % 3
    np.savez(tmp_path / "pacs.npz", x=x, domain=domain)
    assert images(DataConfig(name="npz", root=str(tmp_path / "pacs.npz"))) == Images(9, (4, 4, 3), styles=3)
    config = load_config(
        {
            "partition": {"scheme": "domain", "per_domain": 5},
            "participation": {"per_round": 0.5},
            "train": {"batch_size": 10, "epochs": 2},
            "rounds": 3,
        }
    )
    # 15 clients of 20 images; 8 a round; 2 steps an epoch.
    planned = plan(config, 300, styles=3)
    assert (planned.clients, planned.steps) == (8, 3 * 8 * 2 * 2)


def test_a_method_that_trains_two_models_is_expected_to_take_twice_as_long(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stopwatch, "seconds", lambda self, config, shape: 0.5)
    expected = {}
    for method in ("fedavg", "ditto"):
        recipe = load(str(write(f'title = "t"\n[[row]]\nname = "a"\nconfig = {{ method = "{method}" }}\n')))
        listing = DryRun(tmp_path, Console(quiet=True))
        listing.show(recipe.at("smoke"), cells(recipe.at("smoke"), 1, {}))
        expected[method] = listing.seconds
    assert expected["ditto"] == 2 * expected["fedavg"] > 0


def test_folders_of_a_recipe_are_searched_in_the_given_folder(write: Write, tmp_path: Path) -> None:
    text = 'title = "t"\n[base]\ndata = { name = "folder", root = "Office-Home" }\n[[row]]\nname = "a"\n'
    recipe = load(str(write(text)))
    (tmp_path / "sets" / "Office-Home").mkdir(parents=True)
    (cell,) = cells(recipe.at("paper"), 1, {"data.root": str(tmp_path / "sets")})
    assert cell.config.data.root == str(tmp_path / "sets" / "Office-Home")
    (cell,) = cells(recipe.at("paper"), 1, {})
    assert cell.config.data.root == "Office-Home"


# --- FedStyle's own recipes ---------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in titles() if name.startswith("fedstyle")])
@pytest.mark.parametrize("scale", ["smoke", "mini", "paper"])
def test_fedstyle_trains_with_plain_sgd_and_relu_only_in_its_projector(name: str, scale: str) -> None:
    recipe = load(name)
    if scale not in recipe.scales:
        return
    found = {
        (
            config.train.optimizer,
            config.train.momentum,
            config.train.weight_decay,
            config.model.projector_norm,
        )
        for cell in cells(recipe.at(scale), 1, {}, need_images=False)
        if (config := cell.config)
    }
    assert found == {("sgd", 0.0, 0.0, "none")}


def test_the_best_method_has_momentum_but_not_where_a_generator_would_diverge() -> None:
    for cell in cells(load("best-styles").at("mini"), 1, {}, need_images=False):
        plain = cell.config.method.name == "fedstyle"
        train, norm = cell.config.train, cell.config.model.projector_norm
        assert (train.momentum, train.weight_decay) == ((0.0, 0.0) if plain else (0.9, 5e-4))
        assert norm == ("none" if plain else "batch")


def test_the_control_of_figure_4_has_clients_of_one_style() -> None:
    for scale in ("smoke", "mini", "paper"):
        found = {
            cell.row: (cell.config, cell.measure)
            for cell in cells(load("fedstyle-figure4").at(scale), 1, {}, need_images=False)
        }
        styled, control = found["1 client a style"][0], found["control: 3 clients of one style"][0]
        assert "+" in styled.data.name
        assert "+" not in control.data.name
        assert (control.partition.scheme, control.partition.clients) == ("iid", 3)
        assert control.method == styled.method
        assert control.train == styled.train
        one = found["1 client a style, styles in one client's encoder"]
        assert one[0] == styled  # the same run, seen otherwise
        assert one[1].config == {"protocol": {"encoder": "one"}}


def test_a_picture_of_styles_has_the_rows_that_its_figure_names(write: Write, tmp_path: Path) -> None:
    text = (
        'title = "t"\n[[row]]\nname = "a"\n[[row]]\nname = "b"\nconfig = { seed = 1 }\n'
        '[figure]\nkind = "style"\n'
    )
    panel = {"flat": [[0.0, 1.0], [2.0, 3.0]], "clients": [0, 1], "styles": [0, 0], "style_names": ["x"]}
    for rows, shown in (("", ["a", "b"]), ('rows = ["b"]\n', ["b"])):
        recipe = load(str(write(text + rows)))
        outcomes = [
            Outcome(cell, tmp_path, 1.0, record=Record(config={}, seed=0, panels={"style": panel}))
            for cell in cells(recipe.at("smoke"), 1, {})
        ]
        results = Results(recipe.at("smoke"), 1, {}, outcomes)
        assert list(panels_of(results, "style")) == shown
        assert draw_styles(results, tmp_path / "style.png")
