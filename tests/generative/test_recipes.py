"""PaDPaF's table and figures have recipes, with the paper's settings."""

from __future__ import annotations

import pytest

from fedssl.errors import ConfigError
from fedssl.papers.recipe import load, titles
from fedssl.tables.cells import cells
from fedssl.tables.orderings import comparisons

NAMES = [name for name in titles() if name.startswith("padpaf")]


def test_the_table_and_figures_3_to_18_have_recipes() -> None:
    sources = " ".join(load(name).source for name in NAMES)
    for figure in (3, 4, 5, 6, 7, 8, 9, 10, 11, 14, 15, 16, 17, 18):
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


def test_lower_distances_and_higher_shares_are_better() -> None:
    (first, *_) = comparisons(load("padpaf-table1").at("paper"))
    assert first.lower_is_better
    assert first.text == "PaDPaF < Ditto"
    for comparison in comparisons(load("padpaf-figure3").at("paper")):
        assert not comparison.lower_is_better
    (first, *_) = comparisons(load("padpaf-anonymize").at("paper"))
    assert first.lower_is_better


def test_a_scale_may_change_the_measure() -> None:
    """FID on 10,000 images at scale paper, on 2,000 at scale mini."""
    recipe = load("padpaf-table1")
    counts = [recipe.at(scale).measure.get("config", {}).get("count", 10_000) for scale in ("mini", "paper")]
    assert counts == [2000, 10_000]


def test_no_fid_at_scale_paper_is_of_fewer_than_10_000_images() -> None:
    counts: dict[str, set[int]] = {"mini": set(), "paper": set()}
    for recipe in map(load, NAMES):
        for scale in counts.keys() & set(recipe.scales):
            for cell in cells(recipe.at(scale), 1, {}, need_images=False):
                if cell.measure.what == "fid":
                    counts[scale].add(cell.measure.config.get("count", 10_000))
    assert counts == {"mini": {2000}, "paper": {10_000}}


@pytest.mark.parametrize("name", NAMES)
def test_rows_with_the_papers_name_are_the_papers_model(name: str) -> None:
    """Its split, both terms of the regularizer, and with labels shared maps and a client's own labels."""
    recipe = load(name)
    for cell in cells(recipe.at(recipe.scales[0]), 1, {}) if recipe.scales[0] != "mini" else ():
        objective, method = cell.config.objective, cell.config.method
        if not cell.row.startswith("PaDPaF"):
            assert (cell.row == "without labels, maps learn from real images, too") or (
                method.name != "padpaf"
                or objective.name.startswith("linear")
                or objective.regularizer == 0
                or (objective.label_maps, objective.drawn_labels) != ("shared", "own")
            )
            continue
        assert (method.name, objective.regularizer > 0) == ("padpaf", True)
        if objective.name == "conditional-gan":
            assert (objective.label_maps, objective.drawn_labels) == ("shared", "own")
            assert not objective.augmented
            assert not objective.lens


def test_a_number_must_be_named(tmp_path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('title = "x"\nmeasure = { kind = "generate", what = "fid" }\n[[row]]\nname = "a"\n')
    with pytest.raises(ConfigError, match="generate needs `what` and `number`"):
        load(str(file))
