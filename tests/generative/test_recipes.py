"""PaDPaF's table and figures have recipes, with the paper's settings."""

from __future__ import annotations

import pytest

from fedssl.errors import ConfigError
from fedssl.papers.recipe import load, titles
from fedssl.tables.cells import cells
from fedssl.tables.orderings import comparisons

NAMES = [name for name in titles() if name.startswith("padpaf")]


def test_the_table_and_figures_3_to_16_have_recipes() -> None:
    sources = " ".join(load(name).source for name in NAMES)
    for figure in (3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15, 16):
        assert f"Figure {figure} " in f"{sources} "
    assert "Figures 12 and 13" in sources
    assert "Table 1" in sources


def test_the_papers_settings() -> None:
    (cell, *_) = cells(load("padpaf-figure10").at("paper"), 1, {})
    config = cell.config
    assert (config.objective.features, config.objective.latent, config.rounds) == (64, 128, 300)
    assert (config.train.lr, config.server.lr, config.train.epochs) == (0.001, 0.01, 0.5)
    assert (config.method.discriminator_steps, config.method.decay, config.server.decay) == (3, 0.99, 0.99)
    assert (config.server.beta1, config.server.beta2, config.method.beta1) == (0.5, 0.9, 0.5)
    (cell, *_) = cells(load("padpaf-figure5").at("paper"), 1, {})
    assert (cell.config.train.lr, cell.config.server.lr) == (0.0003, 0.003)
    (cell, *_) = cells(load("padpaf-figure19").at("paper"), 1, {})
    assert (cell.config.partition.clients, cell.config.partition.workers) == (40, 10)
    assert (cell.config.method.discriminator_steps, cell.config.method.decay) == (5, 0.98)


def test_of_distances_less_is_better_and_of_shares_more() -> None:
    (first, *_) = comparisons(load("padpaf-table1").at("paper"))
    assert first.fewer
    assert first.text == "PaDPaF < Ditto"
    (first, second) = comparisons(load("padpaf-figure3").at("paper"))
    assert not first.fewer
    assert not second.fewer


def test_a_number_must_be_named(tmp_path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('title = "x"\nmeasure = { kind = "generate", what = "fid" }\n[[row]]\nname = "a"\n')
    with pytest.raises(ConfigError, match="generate needs a what and a number"):
        load(str(file))
