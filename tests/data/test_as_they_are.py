"""Images as they are found train and embed; files that cannot be read are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image
from tests.data.test_decoding import RAMP, dicom
from tests.small import SMALL

import fedssl
from fedssl.use.embed import embed, embed_one
from fedssl.use.trained import load_trained

KINDS = {"dicom": 1, "tiff": 1, "npy": 5, "photo": 3}  # channels


def folder(kind: str, root: Path) -> Path:
    """Twelve images of one kind, and a broken one."""
    rng = np.random.default_rng(0)
    root.mkdir()
    for number in range(12):
        if kind == "dicom":
            tags = {"WindowCenter": 30000, "WindowWidth": 60000, "InstanceNumber": number}
            dicom(root / f"{number:02}.dcm", np.roll(RAMP, number, axis=1), **tags)
        elif kind == "tiff":
            tifffile.imwrite(root / f"{number:02}.tif", rng.integers(0, 65536, (8, 8)).astype(np.uint16))
        elif kind == "npy":
            np.save(root / f"{number:02}.npy", rng.integers(0, 256, (5, 20, 20)).astype(np.uint8))
        else:
            exif = Image.Exif()
            exif[0x0112] = 6
            pixels = rng.integers(0, 256, (8, 12, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(root / f"{number:02}.jpg", exif=exif)
    suffix = next(root.iterdir()).suffix
    (root / f"broken{suffix}").write_bytes(b"nothing")
    return root


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_folder_trains_and_embeds(kind: str, tmp_path: Path) -> None:
    root = folder(kind, tmp_path / "images")
    warnings: list[str] = []

    class Hears(fedssl.Listener):
        def started(self, info):
            warnings.extend(info.warnings)

    run = fedssl.run(
        {
            **SMALL,
            "data": {
                "name": "folder",
                "root": str(root),
                "size": 8,
                "channels": 1 if kind == "tiff" else 0,
            },
            "partition": {"scheme": "iid", "clients": 2},
            "train": {"batch_size": 4, "epochs": 1},
            "rounds": 1,
        },
        out=tmp_path / "run",
        quiet=True,
        listeners=[Hears()],
    )
    assert any("broken" in warning for warning in warnings)
    assert run.metrics[0]["failed"] == []
    given = run.directory.encoder_description()["input"]
    assert given["channels"] == KINDS[kind]
    trained = load_trained(run.path, "cpu")
    found = embed(trained, root)
    assert len(found) == 12
    assert [Path(name).stem for name in found.skipped] == ["broken"]
    assert found.vectors.std(dim=0).max() > 0
    assert np.allclose(embed_one(trained, root / found.paths[0]), found.vectors[0], atol=1e-5)
