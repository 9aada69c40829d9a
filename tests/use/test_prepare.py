"""The documented preparation of images gives the vectors of `fedssl embed`."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.small import small_run

import fedssl
from fedssl.use.embed import embed
from fedssl.use.export import export
from fedssl.use.trained import load_trained

PAGE = Path(__file__).parents[2] / "docs" / "use.md"


@pytest.fixture(scope="module")
def prepare():
    """The function as the page prints it."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = [block for block in blocks if "def prepare(" in block]
    scope: dict = {}
    exec(block, scope)
    return scope["prepare"]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Images of several shapes and kinds, including a large rotated JPEG."""
    root, rng = tmp_path_factory.mktemp("mixed"), np.random.default_rng(0)
    small = rng.integers(0, 256, (40, 56, 3), dtype=np.uint8)
    Image.fromarray(small).save(root / "wide.png")
    Image.fromarray(small[:, :, 0]).save(root / "grey.png")
    Image.fromarray(small[:30, :30]).save(root / "square.bmp")
    large = Image.fromarray(small).resize((900, 600), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = 6
    large.save(root / "turned.jpg", exif=exif)
    return root


@pytest.fixture(scope="module")
def cropped(mixed, tmp_path_factory):
    """A run on color images cropped to central squares."""
    data = {"name": "folder", "root": str(mixed), "size": 16, "resize": "crop", "limit": 0}
    return small_run(
        tmp_path_factory.mktemp("cropped") / "run",
        rounds=1,
        data=data,
        partition={"scheme": "iid", "clients": 2},
        train={"batch_size": 2, "epochs": 1.0},
    )


@pytest.mark.parametrize("which", ["gray, squashed", "color, cropped"])
def test_the_documented_function_prepares_images_as_in_training(
    which, run, cropped, mixed, prepare, tmp_path
):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    source: fedssl.Run = cropped if "crop" in which else run
    export(source.path, "onnx", tmp_path / "encoder")
    session = onnxruntime.InferenceSession(str(tmp_path / "encoder.onnx"))
    about = session.get_modelmeta().custom_metadata_map
    expected = embed(load_trained(source.path, "cpu"), mixed)
    assert len(expected) == 4
    for path, vector in zip(expected.paths, expected.vectors, strict=True):
        (found,) = session.run(None, {"pixels": prepare(mixed / path, about)})
        assert found[0] == pytest.approx(vector.numpy(), abs=1e-4), path


def test_metadata_say_how_images_are_prepared(cropped, photos, run, tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from fedssl.use.finetune import finetune

    export(cropped.path, "onnx", tmp_path / "encoder")
    about = {prop.key: prop.value for prop in onnx.load(str(tmp_path / "encoder.onnx")).metadata_props}
    assert about["channel_order"] == "RGB"
    assert about["size"] == "16x16"
    assert about["resize"] == "crop"
    assert about["interpolation"] == "bilinear"
    assert about["antialias"] == "yes"
    assert about["mean"] == "[0.5, 0.5, 0.5]"
    assert about["std"] == "[0.25, 0.25, 0.25]"
    assert "classes" not in about
    card = (tmp_path / "encoder.md").read_text(encoding="utf-8")
    assert "| interpolation | bilinear |" in card
    assert "cropped to their largest central square" in card
    finetune(run.path, photos, tmp_path / "sides")
    export(tmp_path / "sides", "onnx", tmp_path / "sides")
    about = {prop.key: prop.value for prop in onnx.load(str(tmp_path / "sides.onnx")).metadata_props}
    assert about["classes"] == '["left", "right"]'
    assert about["channel_order"] == "grey"


def test_crop_keeps_the_square_in_the_middle_whatever_the_source(tmp_path):
    """A stripe down the middle of wide images: cropped from a folder and from an array alike."""
    pixels = np.zeros((6, 8, 16, 3), dtype=np.uint8)
    pixels[:, :, 4:12] = 200
    np.savez(tmp_path / "wide.npz", x=pixels, y=np.arange(6) % 2)
    (tmp_path / "folder").mkdir()
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / "folder" / f"{number}.png")
    from fedssl.data.options import DataConfig
    from fedssl.data.sets import load_whole

    for name, root in (("npz", tmp_path / "wide.npz"), ("folder", tmp_path / "folder")):
        squashed = load_whole(DataConfig(name=name, root=str(root), size=8))
        cropped = load_whole(DataConfig(name=name, root=str(root), resize="crop"))
        assert cropped.x.shape == (6, 8, 8, 3)
        assert bool((cropped.x == 200).all())
        assert not bool((squashed.x == 200).all())
