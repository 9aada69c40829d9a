from pathlib import Path

import numpy as np
import pytest
import torch

from fedssl.data.federation import federate
from fedssl.engines.checkpoint import Checkpoints
from fedssl.engines.memory import MemoryStore
from fedssl.engines.network import build_network
from fedssl.errors import RunError
from fedssl.papers.analysis.landscape import landscape, plane_through
from fedssl.rng import torch_rng
from fedssl.rundir import RunDir
from tests.small import small_run


def test_points_in_a_plane_keep_their_distances():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(9, 2)))[0]
    flat = rng.normal(size=(6, 2))
    plane = plane_through(flat @ basis.T + rng.normal(size=9))
    assert plane.explained == pytest.approx(1.0)
    assert plane.path[-1].tolist() == [0.0, 0.0]
    for i in range(6):
        for j in range(6):
            expected = np.linalg.norm(flat[i] - flat[j])
            assert np.linalg.norm(plane.path[i] - plane.path[j]) == pytest.approx(expected)
    assert plane.axes @ plane.axes.T == pytest.approx(np.eye(2), abs=1e-12)


def test_no_other_plane_explains_more_variance():
    rng = np.random.default_rng(1)
    points = rng.normal(size=(8, 12)) * np.linspace(3, 0.1, 12)
    plane = plane_through(points)
    away = points - points[-1]
    for _ in range(50):
        other = np.linalg.qr(rng.normal(size=(12, 2)))[0]
        assert ((away @ other) ** 2).sum() <= plane.explained * (away**2).sum() + 1e-9


def test_losses_are_the_objectives_at_the_points_of_the_plane(tmp_path: Path):
    run = small_run(tmp_path / "run", **{"checkpoint.every": 1, "checkpoint.keep": 0})
    seen = landscape(run.path, grid=2, images=40)
    assert seen.rounds == [0, 1, 2, 3]
    assert seen.losses.shape == (2, 2)

    # The same corner again, from the files of the run and by a loop over tensors.
    directory = RunDir.open(run.path)
    config = directory.config()
    federation = federate(config)
    model = build_network(config, (8, 8), 1, 10).model
    last = Checkpoints(directory.checkpoints, 0, MemoryStore(directory.memories, 1)).load(3).server.model
    start = 0
    for name, parameter in model.named_parameters():
        place = slice(start, start + parameter.numel())
        moved = seen.xs[1] * seen.plane.axes[0][place] + seen.ys[0] * seen.plane.axes[1][place]
        parameter.data = last[name] + torch.from_numpy(moved).float().view(parameter.shape)
        start += parameter.numel()
    rng = torch_rng(config.seed, "landscape")
    chosen = torch.randperm(len(federation.train), generator=rng)[:40].sort().values
    from fedssl.engines.runner import ClientRunner

    views = ClientRunner(
        config, federation, build_network(config, (8, 8), 1, 10), MemoryStore(tmp_path / "m", 1)
    ).views(federation.train.x[chosen], rng)
    with torch.no_grad():
        expected = config.objective.loss(model.train(), views, None, torch_rng(0, "unused"))
    assert seen.losses[0, 1] == pytest.approx(float(expected), rel=1e-4)


def test_a_run_without_checkpoints_is_an_error(tmp_path: Path):
    run = small_run(tmp_path / "run")
    with pytest.raises(RunError, match=r"has 1 checkpoint.*checkpoint\.keep=0"):
        landscape(run.path)
