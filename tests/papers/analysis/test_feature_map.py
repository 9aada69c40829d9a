"""Features of the global and of two local models in one plane."""

import numpy as np
import pytest

from fedssl.errors import DataError, RunError
from fedssl.papers.analysis.feature_map import feature_map, joint, save_picture
from tests.small import small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    keys = {"rounds": 2, "checkpoint.every": 1, "checkpoint.keep": 2}
    return small_run(tmp_path_factory.mktemp("runs") / "a", **keys)


def test_features_of_three_models_are_in_one_plane(run, tmp_path):
    seen = feature_map(run.path, clients=(0, 2), images=40)
    assert seen.models == ["global", "client 0", "client 2"]
    assert seen.points.shape == (3, 40, 2)
    assert np.isfinite(seen.points).all()
    assert len(seen.labels) == 40
    again = feature_map(run.path, clients=(0, 2), images=40)
    np.testing.assert_array_equal(seen.points, again.points)
    file = tmp_path / "map.png"
    save_picture(file, again)
    assert file.read_bytes().startswith(b"\x89PNG")


def test_equal_models_coincide_in_the_map():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 30))
    points, _ = joint([features, features + 1e-6, features + 30], seed=0)
    own = np.linalg.norm(points[0] - points[1], axis=1)
    other = np.linalg.norm(points[0] - points[2], axis=1)
    assert np.median(own) < 0.2 * np.median(other)


def test_bad_requests_are_named(run):
    with pytest.raises(RunError, match=r"client 9 did not take part in round 2: choose from \[0, 1"):
        feature_map(run.path, clients=(0, 9))
    with pytest.raises(DataError, match="3 points are too few"):
        joint([np.zeros((1, 4))] * 3, seed=0)
