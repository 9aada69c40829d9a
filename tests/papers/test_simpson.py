"""Simpson's paradox: the data, the routing, and the whole story in one run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedssl
from fedssl.data.options import DataConfig
from fedssl.data.views import plain
from fedssl.errors import ConfigError
from fedssl.generative.use import generate
from fedssl.papers.recipe import load
from fedssl.papers.simpson.fit import Expert, least_squares, route
from fedssl.papers.simpson.model import as_images, as_points
from fedssl.papers.simpson.points import RANGE, bars, simpson, simpson_cluttered
from fedssl.tables.cells import cells
from tests.generative.small import run_of


def points(images: torch.Tensor) -> np.ndarray:
    return as_points(plain(images, 0.5, 1 / (2 * RANGE))).double().numpy()


@pytest.mark.parametrize("make", [simpson, simpson_cluttered])
def test_every_client_rises_while_all_together_fall(make) -> None:
    train, test = make(DataConfig())
    for split in (train, test):
        assert len(split) == 400
        xy = points(split.x)
        slopes = [np.polyfit(*xy[split.domain.numpy() == client].T, 1)[0] for client in range(8)]
        assert np.ptp(slopes) < 0.02  # one weight for all
        assert min(slopes) > 0
        assert np.polyfit(*xy.T, 1)[0] < 0
    assert points(train.x).mean(0) == pytest.approx([0, 0], abs=1e-3)
    assert points(train.x).std(0) == pytest.approx([1, 1], abs=1e-3)


def test_bars_hold_a_coordinate_to_a_thousandth() -> None:
    xy = np.random.default_rng(0).uniform(-RANGE, RANGE, (200, 2))
    images = torch.from_numpy(bars(xy))
    assert (images.shape, images.dtype) == ((200, 2, 16, 1), torch.uint8)
    assert np.abs(points(images) - xy).max() < 0.001
    ones = torch.tensor([[0.25, -1.0]])
    assert torch.equal(as_points(as_images(ones)), ones)


def test_least_squares_is_numpys() -> None:
    xy = points(simpson(DataConfig())[0].x)
    assert least_squares(torch.from_numpy(xy)) == pytest.approx(tuple(np.polyfit(*xy.T, 1)), abs=1e-6)


def test_the_most_confident_client_answers() -> None:
    class Sure(Expert):
        def confidence(self, x: torch.Tensor) -> torch.Tensor:
            return -(x - self.middle[0]).abs()

    experts = [Sure(1.0, torch.tensor([0.0, 5.0]), None), Sure(1.0, torch.tensor([2.0, 0.0]), None)]
    assert route(experts, torch.tensor([0.1, 0.9, 1.1])).tolist() == pytest.approx([5.1, 5.9, -0.9])


def test_the_recipe_recovers_the_trend_and_routes_well(tmp_path: Path) -> None:
    """The whole of Figure 3, as `fedssl reproduce padpaf-figure3 --scale mini` runs it."""
    (cell, *_) = cells(load("padpaf-figure3").at("mini"), 1, {})
    run = fedssl.run(cell.config, out=tmp_path / "run", quiet=True)
    found = generate(run.directory, "simpson", {})
    assert found["global_slope"] < -0.9
    assert found["shared_slope"] > 0.1
    assert min(found["slopes"]) > 0
    assert found["gain"] >= 20
    assert found["mse"] * found["gain"] == pytest.approx(found["mse_global"])
    assert found["mse_fresh"] < found["mse_fresh_global"] / 4
    assert Path(found["picture"]).stat().st_size > 10_000


def test_other_runs_are_refused(tmp_path: Path) -> None:
    run = run_of("gan", tmp_path / "run", rounds=1)
    with pytest.raises(ConfigError, match="linear-gan"):
        generate(run.directory, "simpson", {})


def test_a_linear_run_draws_no_pictures(tmp_path: Path) -> None:
    run = run_of("linear-gan", tmp_path / "run", rounds=1)
    with pytest.raises(ConfigError, match="points of a plane"):
        generate(run.directory, "grid", {})
