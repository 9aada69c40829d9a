"""The picture of style features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fedssl.evaluation.style_features import StyleFeatures
from fedssl.papers.analysis.style import embed, of_run, save_picture
from fedssl.rng import torch_rng
from tests.small import small_run


def test_separate_clusters_are_separate_in_two_dimensions() -> None:
    noise = torch.randn(60, 8, generator=torch_rng(0, "noise"))
    clients = torch.arange(60) // 20
    seen = StyleFeatures(noise + 40 * torch.eye(8)[clients], clients, None, ())
    flat = embed(seen)
    assert np.array_equal(flat, embed(seen))
    centers = np.stack([flat[clients.numpy() == client].mean(axis=0) for client in range(3)])
    own = np.linalg.norm(flat - centers[clients.numpy()], axis=1)
    others = np.linalg.norm(flat[:, None] - centers, axis=2)
    assert (others.argmin(axis=1) == clients.numpy()).all()
    assert own.max() < others[:, :].max()


def test_the_picture_of_a_run(tmp_path: Path) -> None:
    run = small_run(
        tmp_path / "a",
        method={"name": "fedstyle", "style_epochs": 1},
        rounds=1,
        data={"name": "digits+mnist5k", "limit": 24, "size": 8},
        partition={"scheme": "domain"},
    )
    save_picture(tmp_path / "style.png", run.path, "digits")
    width, height = Image.open(tmp_path / "style.png").size
    assert width > height > 300
    seen = of_run(run.path)
    assert seen.features.shape == (24, 16)
    assert seen.style_names == ("digits", "mnist5k")
