import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fedssl
from fedssl.cli import main
from fedssl.config import load
from fedssl.errors import ConfigError
from fedssl.rundir import RunDir
from fedssl.use.card import describe_protection
from fedssl.use.classifier import load_network
from fedssl.use.export import export
from fedssl.use.finetune import finetune


def images(count: int = 4) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 8, 8, 1), dtype=np.uint8)


def test_timm_loads_the_file_without_fedssl(run: fedssl.Run, tmp_path: Path):
    assert main(["export", str(run.path), "--to", "safetensors", "-o", str(tmp_path / "my-encoder")]) == 0
    np.save(tmp_path / "x.npy", images())
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
sys.modules["fedssl"] = None
import numpy, timm, torch, my_encoder
encoder = timm.create_model("my_encoder", checkpoint_path={str(tmp_path / "my-encoder.safetensors")!r}).eval()
x = torch.from_numpy(numpy.load({str(tmp_path / "x.npy")!r})).permute(0, 3, 1, 2).float() / 255
numpy.save({str(tmp_path / "y.npy")!r}, encoder((x - 0.5) / 0.25).detach().numpy())
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    expected = load_network(run.path, "cpu")(images()).numpy()
    assert np.load(tmp_path / "y.npy") == pytest.approx(expected, abs=1e-5)


def test_onnx_gives_the_same_numbers(run: fedssl.Run, photos: Path, tmp_path: Path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    finetune(run.path, photos, tmp_path / "sides")
    for source, output in ((run.path, "features"), (tmp_path / "sides", "logits")):
        export(source, "onnx", tmp_path / output)
        session = onnxruntime.InferenceSession(str(tmp_path / f"{output}.onnx"))
        assert session.get_inputs()[0].shape[0] == session.get_outputs()[0].shape[0] == "images"
        pixels = images(5).transpose(0, 3, 1, 2).astype(np.float32) / 255
        (found,) = session.run([output], {"pixels": pixels})
        assert found == pytest.approx(load_network(source, "cpu")(images(5)).numpy(), abs=1e-4)


def test_the_card_says_what_it_is(run: fedssl.Run, photos: Path, tmp_path: Path):
    finetune(run.path, photos, tmp_path / "sides")
    export(tmp_path / "sides", "safetensors", tmp_path / "sides.safetensors")
    text = (tmp_path / "sides.md").read_text()
    assert text.startswith("---\nlibrary_name: timm\npipeline_tag: image-classification\n")
    assert "100 images of `digits`, held by 5 clients" in text
    assert "of 12 held-out images" in text
    assert "no formal privacy guarantee" in text
    from safetensors.torch import load_file

    assert load_file(tmp_path / "sides.safetensors")["1.weight"].shape == (2, 16)


def test_an_unknown_format(run: fedssl.Run, tmp_path: Path):
    with pytest.raises(ConfigError, match="unknown format 'onix': did you mean onnx"):
        export(run.path, "onix", tmp_path / "file")


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"privacy.mode": "client", "privacy.random": "secret"}, "with ε = 2.5, δ = 1e-05"),
        ({"privacy.mode": "client", "privacy.random": "seed"}, "no formal privacy guarantee"),
        ({}, "no formal privacy guarantee"),
    ],
)
def test_the_card_states_the_privacy_guarantee(tmp_path: Path, keys: dict[str, str], told: str):
    directory = RunDir.create(tmp_path / "run", load({}, keys))
    directory.append({"round": 1, **({"epsilon": 2.5} if keys else {})})
    assert told in describe_protection(directory.config(), directory)
