from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.small import small_run

import fedssl


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedssl.Run:
    """A short run on digits: gray images of 8×8 pixels, 16 features."""
    return small_run(tmp_path_factory.mktemp("use") / "run", rounds=1)


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`class/image`: bright squares on the left or on the right, 30 of each."""
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name, side in (("left", 0), ("right", 4)):
        (root / name).mkdir()
        for number in range(30):
            image = rng.integers(0, 60, (8, 8), dtype=np.uint8)
            image[:, side : side + 4] += 150
            Image.fromarray(image).save(root / name / f"{number:02d}.png")
    return root
