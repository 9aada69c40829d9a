from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedssl.config import load as load_config
from fedssl.errors import ConfigError
from fedssl.papers.recipe import Recipe, load
from fedssl.storage import write_toml
from fedssl.tables.cells import cells, folder, locate, overlay
from tests.tables.conftest import SMALL

Write = Callable[..., Path]


def test_layers_override_each_other_from_base_to_overrides(write: Write) -> None:
    text = """
title = "t"
[base]
rounds = 1
train = { lr = 0.1, epochs = 1, batch_size = 8 }
[scale.smoke]
train = { lr = 0.2 }
[scale.paper]
rounds = 100
[[column]]
name = "c"
config = { train.lr = 0.3 }
scale.smoke = { train.epochs = 2 }
[[row]]
name = "r"
config = { train.epochs = 3, model.width = 4 }
scale.smoke = { model.width = 6 }
"""
    recipe = load(str(write(text)))
    (cell,) = cells(recipe.at("smoke"), 1, {"train.batch_size": 16})
    train = cell.config.train
    assert (cell.config.rounds, train.lr, train.epochs, train.batch_size) == (1, 0.3, 3, 16)
    assert cell.config.model.width == 6
    assert cells(recipe.at("paper"), 1, {})[0].config.rounds == 100


def test_naming_another_part_drops_the_keys_it_does_not_have() -> None:
    base = {"partition": {"scheme": "classes", "classes": 2, "clients": 7}, "method": "fedavg"}
    assert overlay(base, {"partition": "iid"})["partition"] == {"scheme": "iid", "clients": 7}
    same = overlay(base, {"partition": {"scheme": "classes", "clients": 3}})
    assert same["partition"] == {"scheme": "classes", "classes": 2, "clients": 3}
    assert overlay(base, {"partition": {"clients": 3}})["partition"]["classes"] == 2


def test_cells_are_ordered_by_seed(small: Recipe) -> None:
    planned = cells(small.at("smoke"), 2, {})
    assert [cell.seed for cell in planned] == [0] * 4 + [1] * 4
    assert [(cell.row, cell.column) for cell in planned[:2]] == [("SimCLR", "iid"), ("SimCLR", "skewed")]
    assert all(cell.config.seed == cell.seed for cell in planned)


def test_a_folder_is_named_by_its_config(small: Recipe) -> None:
    planned = cells(small.at("smoke"), 2, {})
    assert len({cell.folder for cell in planned}) == 8
    assert planned[0].folder.startswith("digits-simclr-fedavg-s0-")
    changed = cells(small.at("smoke"), 2, {"train.lr": 0.123})
    assert not {cell.folder for cell in planned} & {cell.folder for cell in changed}


def test_machine_settings_do_not_change_the_folder(small: Recipe) -> None:
    plain = cells(small.at("smoke"), 1, {})[0]
    other = cells(small.at("smoke"), 1, {"engine.workers": 2, "checkpoint.every": 1, "log.wandb": "x"})[0]
    assert plain.folder == other.folder


def test_a_run_of_an_older_version_is_found_again(small: Recipe, tmp_path: Path) -> None:
    cell, other = cells(small.at("smoke"), 1, {})[0], cells(small.at("smoke"), 1, {"train.lr": 0.123})[0]
    assert locate(tmp_path, cell) == tmp_path / cell.folder
    old = tmp_path / f"{cell.folder[:-8]}01234567"
    # A version that did not know `semi` wrote a config without it, and had another name for the run.
    before = {key: value for key, value in cell.config.to_dict().items() if key != "semi"}
    write_toml(old / "config.toml", before)
    assert locate(tmp_path, cell) == old
    assert locate(tmp_path, other) == tmp_path / other.folder
    write_toml(old / "config.toml", {**before, "gone": 1})
    assert locate(tmp_path, cell) == tmp_path / cell.folder


def test_limits_matter_to_runs_with_attackers_alone() -> None:
    loose, strict = ({"participation": {"max_change": limit}} for limit in (100.0, 10.0))
    attack = {"attack": {"name": "scale"}}
    assert folder(load_config(loose)) == folder(load_config(strict))
    assert folder(load_config({**loose, **attack})) != folder(load_config({**strict, **attack}))


def test_recipes_share_the_runs_they_have_in_common() -> None:
    def of(name: str, row: str, column: str) -> str:
        planned = cells(load(name).at("paper"), 1, {})
        return next(cell.folder for cell in planned if (cell.row, cell.column) == (row, column))

    here = of("fedema-table1", "FedBYOL", "CIFAR-10")
    assert here == of("fedema-table2", "FedBYOL", "l = 2")
    assert here == of("fedema-table3", "FedBYOL", "CIFAR-10 non-IID")
    assert here == of("fedema-figure9", "FedBYOL", "R = 100")
    assert here != of("fedema-table3", "FedBYOL", "CIFAR-10 IID")
    central = ("fedema-table3", "BYOL (centralized)")
    assert of(*central, "CIFAR-10 IID") == of(*central, "CIFAR-10 non-IID") != of(*central, "CIFAR-100 IID")


def test_the_paper_scale_is_the_papers() -> None:
    cell = cells(load("fedema-table3").at("paper"), 1, {})[-1]
    config = cell.config
    assert (config.rounds, config.train.epochs, config.train.batch_size, config.train.lr) == (
        100,
        5,
        128,
        0.032,
    )
    assert (config.model.encoder, config.model.projector_hidden, config.model.projector_out) == (
        "resnet18",
        4096,
        2048,
    )
    assert (config.probe.form, config.probe.epochs, config.probe.batch_size, config.probe.lr) == (
        "epochs",
        200,
        512,
        3e-3,
    )
    many = cells(load("fedema-table6").at("paper"), 1, {})[-1].config
    assert (many.rounds, many.train.epochs, many.partition.clients, many.participation.per_round) == (
        800,
        2,
        80,
        8,
    )


@pytest.mark.parametrize(
    ("overrides", "seeds", "problem"),
    [
        ({"seed": 3}, 1, "choose seeds with --first-seed"),
        ({}, 0, "at least 1"),
        ({"rouns": 3}, 1, "unknown key 'rouns': did you mean rounds"),
    ],
)
def test_wrong_overrides_are_errors_of_the_command(
    small: Recipe, overrides: dict[str, object], seeds: int, problem: str
) -> None:
    with pytest.raises(ConfigError) as error:
        cells(small.at("smoke"), seeds, overrides)
    assert problem in str(error.value)
    assert "mine.toml" not in str(error.value)


def test_a_wrong_config_key_names_file_row_and_column(write: Write) -> None:
    recipe = load(str(write(SMALL.replace('{ objective = "byol" }', "{ train.lrr = 1 }"))))
    with pytest.raises(ConfigError, match=r"mine.toml: row 'BYOL', column 'iid': unknown key 'train.lrr'"):
        cells(recipe.at("smoke"), 1, {})


def test_files_are_searched_in_the_given_folder(write: Write, tmp_path: Path) -> None:
    text = 'title = "t"\n[base]\ndata = { name = "npz", root = "tiny_train.npz" }\n[[row]]\nname = "r"\n'
    recipe = load(str(write(text)))
    with pytest.raises(ConfigError, match=r"mine, scale mini needs tiny_train.npz.*data.root=FOLDER"):
        cells(recipe.at("mini"), 1, {"data.root": str(tmp_path)})
    np.savez(tmp_path / "tiny_train.npz", x=np.zeros((4, 8, 8, 3), np.uint8))
    (by_folder,) = cells(recipe.at("mini"), 1, {"data.root": str(tmp_path)})
    (by_file,) = cells(recipe.at("mini"), 1, {"data.root": str(tmp_path / "tiny_train.npz")})
    assert by_folder.config.data.root == by_file.config.data.root == str(tmp_path / "tiny_train.npz")
    assert by_folder.folder.startswith("tiny-simclr-fedavg-s0-")
    assert folder(by_folder.config) == by_folder.folder
    (elsewhere,) = cells(recipe.at("mini"), 1, {"data.name": "digits"})
    assert elsewhere.config.data.name == "digits"
