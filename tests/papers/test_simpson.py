"""Simpson's paradox: the data, the routing, and a complete run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import fedssl
from fedssl.config import load as load_config
from fedssl.data.options import DataConfig
from fedssl.data.sets import load as load_data
from fedssl.data.views import plain
from fedssl.errors import ConfigError
from fedssl.generative.use import generate
from fedssl.papers.recipe import load
from fedssl.papers.simpson.fit import ConfidentExpert, least_squares, linear_router, most_confident, route
from fedssl.papers.simpson.model import as_images, as_points
from fedssl.papers.simpson.points import RANGE, bars, sample, simpson, simpson_cluttered
from fedssl.tables.cells import cells
from tests.generative.small import run_of


def points(images: torch.Tensor) -> np.ndarray:
    return as_points(plain(images, 0.5, 1 / (2 * RANGE))).double().numpy()


@pytest.mark.parametrize("make", [simpson, simpson_cluttered])
def test_clients_trend_up_while_the_total_trends_down(make) -> None:
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


def test_every_seed_draws_its_own_points() -> None:
    one, two = (points(simpson(DataConfig(), seed=seed)[0].x) for seed in (0, 1))
    assert np.abs(one - two).max() > 0.1
    config = load_config({"data": {"name": "simpson"}, "partition": {"scheme": "domain"}}, {"seed": 5})
    for images, drawn in zip(
        load_data(config.data, 5), (sample("simpson", 5).train, sample("simpson", 5).test), strict=True
    ):
        assert np.abs(points(images.x) - drawn).max() < 0.001


def test_the_true_line_goes_through_every_point() -> None:
    for name in ("simpson", "simpson-cluttered"):
        drawn = sample(name, 3)
        for split in (drawn.train, drawn.test):
            expected = drawn.slope * split[:, 0] + drawn.intercepts[drawn.owner]
            np.testing.assert_allclose(split[:, 1], expected, atol=1e-9)


@pytest.mark.parametrize("private", [True, False])
def test_federated_regression_is_gradient_descent_on_both_parameters(private: bool, tmp_path: Path) -> None:
    """A second implementation in numpy, with full batches: w is averaged, b is not (or is, too)."""
    run = regression(tmp_path, **{"objective.private_bias": private, "rounds": 3, "train.epochs": 2.0})
    found = generate(run.directory, "simpson", {})
    xy = points(simpson(DataConfig(), seed=3)[0].x)
    w, b = 0.0, np.zeros(8)
    for _ in range(3):
        slopes = np.full(8, w)
        for client in range(8):
            x, y = xy[50 * client : 50 * client + 50].T
            for _ in range(2):
                error = slopes[client] * x + b[client] - y
                slopes[client] -= 0.2 * 2 * (error * x).mean()
                b[client] -= 0.2 * 2 * error.mean()
        w, b = slopes.mean(), b if private else np.full(8, b.mean())
    assert found["shared_slope"] == pytest.approx(w, abs=1e-4)
    assert found["slopes"] == pytest.approx([found["shared_slope"]] * 8)
    assert found["true_slope"] == pytest.approx(sample("simpson", 3).slope)
    # The errors, by hand: scikit-learn names the client, whose line answers.
    drawn = sample("simpson", 3)
    router = LogisticRegression(C=1 / (1e-6 * 400), max_iter=10_000).fit(
        (xy[:, :1] - xy[:, 0].mean()) / xy[:, 0].std(), drawn.owner
    )
    named = router.predict((drawn.test[:, :1] - xy[:, 0].mean()) / xy[:, 0].std())
    naive = ((w * drawn.test[:, 0] + b[named] - drawn.test[:, 1]) ** 2).mean()
    assert found["mse_fresh"] == pytest.approx(naive, rel=0.05)
    slope, intercept = np.polyfit(*xy.T, 1)
    whole = ((slope * drawn.test[:, 0] + intercept - drawn.test[:, 1]) ** 2).mean()
    assert found["mse_fresh_global"] == pytest.approx(whole, rel=1e-3)
    assert found["gain_fresh"] == pytest.approx(found["mse_fresh_global"] / found["mse_fresh"])


def test_a_linear_router_identifies_the_client() -> None:
    drawn = sample("simpson", 1)
    own = [torch.from_numpy(drawn.train[drawn.owner == client]) for client in range(8)]
    named = linear_router(own)(torch.from_numpy(drawn.test[:, 0])).numpy()
    assert (named != drawn.owner).mean() < 0.03  # ranges touch
    assert np.abs(named - drawn.owner).max() <= 1


def regression(folder: Path, **keys: object) -> fedssl.Run:
    base = load("padpaf-figure3").at("mini").base
    full = {"train.batch_size": 50, "seed": 3, **keys}
    return fedssl.run(base, out=folder / "run", quiet=True, **full)


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


def test_the_most_confident_client_is_chosen() -> None:
    class Sure(ConfidentExpert):
        def confidence(self, x: torch.Tensor) -> torch.Tensor:
            return -(x - self.middle[0]).abs()

    experts = [Sure(1.0, torch.tensor([0.0, 5.0]), None), Sure(1.0, torch.tensor([2.0, 0.0]), None)]
    answers = route(experts, most_confident(experts), torch.tensor([0.1, 0.9, 1.1]))
    assert answers.tolist() == pytest.approx([5.1, 5.9, -0.9])


def test_the_recipe_recovers_the_trend_and_routes_well(tmp_path: Path) -> None:
    """The linear GAN of Figure 3, as `fedssl reproduce padpaf-figure3 --scale mini` runs it."""
    cell = next(cell for cell in cells(load("padpaf-figure3").at("mini"), 1, {}) if cell.row == "linear GAN")
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
    with pytest.raises(ConfigError, match="linear-regression or linear-gan"):
        generate(run.directory, "simpson", {})


def test_a_linear_run_has_no_image_grids(tmp_path: Path) -> None:
    run = run_of("linear-gan", tmp_path / "run", rounds=1)
    with pytest.raises(ConfigError, match="points of a plane"):
        generate(run.directory, "grid", {})
