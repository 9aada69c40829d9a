"""Every run reports whether its encoder has collapsed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.small import SMALL, small_run
from torch import Tensor, nn

from fedssl import experiment
from fedssl.config import load
from fedssl.data.federation import Federation
from fedssl.data.images import ImageSet
from fedssl.data.options import DataConfig
from fedssl.evaluation.spread import COLLAPSED, Spread, warn_of_collapse
from fedssl.listener import Listener


class Notes(Listener):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_the_last_round_always_has_the_feature_spread(tmp_path: Path) -> None:
    run = small_run(tmp_path / "a")
    assert ["probe" in line for line in run.metrics] == [False, False, True]
    assert set(run.metrics[-1]["probe"]) == {"feature_std", "seconds"}
    assert run.metrics[-1]["probe"]["feature_std"] > COLLAPSED


def test_unlabeled_images_are_monitored_too(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 3), dtype=np.uint8)
    (tmp_path / "images").mkdir()
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / "images" / f"{number}.png")
    data = {"name": "folder", "root": str(tmp_path / "images"), "limit": 0}
    keys = {"data": data, "partition": {"scheme": "iid", "clients": 2}, "probe.every": 1, "rounds": 2}
    run = small_run(tmp_path / "a", **keys)
    assert [set(line["probe"]) for line in run.metrics] == [{"feature_std", "seconds"}] * 2


class Alike(nn.Module):
    """The same feature for every image, except for its sign if the image is bright."""

    def forward(self, images: Tensor) -> Tensor:
        bright = images.mean(dim=(1, 2, 3)) > 0
        return torch.where(bright, -1.0, 1.0)[:, None].expand(-1, 4)


def test_equal_features_have_spread_zero() -> None:
    dark = torch.zeros(8, 2, 2, 1, dtype=torch.uint8)
    bright = dark + 255
    spread = Spread(ImageSet(dark), DataConfig(), torch.device("cpu"))
    assert spread.measure(Alike()) == {"feature_std": 0.0}
    spread = Spread(ImageSet(torch.cat((dark, bright))), DataConfig(), torch.device("cpu"))
    assert spread.measure(Alike())["feature_std"] == pytest.approx(1.0)  # ±½ in 4 dimensions, times √4


def test_a_collapsed_encoder_causes_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Spread, "measure", lambda self, encoder: {"feature_std": 0.001})
    listener = Notes()
    experiment.run(load(SMALL, {"rounds": 1}), tmp_path / "a", listener)
    assert any("round 1: features have collapsed" in note for note in listener.notes)


@pytest.mark.parametrize(("spread", "warned"), [(0.0, True), (0.009, True), (0.02, False), (1.0, False)])
def test_only_a_spread_near_zero_causes_a_warning(spread: float, warned: bool) -> None:
    assert bool(warn_of_collapse(spread, 3)) == warned


def test_the_spread_is_that_of_the_test_images_if_there_are_any() -> None:
    train = ImageSet(torch.zeros(10, 2, 2, 1, dtype=torch.uint8))
    test = ImageSet(torch.full((600, 2, 2, 1), 7, dtype=torch.uint8))
    parts = [np.arange(10)]
    for given, count, value in ((test, 256, 7), (None, 10, 0)):
        federation = Federation(train, given, parts, np.arange(0))
        images = Spread.over(federation, DataConfig(), torch.device("cpu")).images
        assert len(images) == count
        assert int(images.x[0, 0, 0, 0]) == value
