import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import fedssl
from fedssl.cli import main
from fedssl.errors import DataError
from fedssl.use.classifier import load_network
from fedssl.use.finetune import finetune
from fedssl.use.finetune_page import page


def test_a_classifier_from_five_labels_per_class(run: fedssl.Run, photos: Path, tmp_path: Path, capsys):
    out = tmp_path / "sides"
    assert main(["finetune", str(run.path), str(photos), "-o", str(out), "--labels", "5"]) == 0
    assert "after 10 labeled images of 2 classes" in capsys.readouterr().out
    known = json.loads((out / "classifier.json").read_text())
    assert known["classes"] == ["left", "right"]
    assert known["scores"]["images"] == 12  # a fifth of 60
    assert known["scores"]["accuracy"] >= 0.9
    assert sum(map(sum, known["scores"]["confusion"])) == 12
    text = (out / "report.html").read_text()
    assert "of 12 held-out images" in text


def test_linear_equals_scikit_learns_logistic_regression(run: fedssl.Run, photos: Path, tmp_path: Path):
    tuned = finetune(run.path, photos, tmp_path / "out")
    network = load_network(tmp_path / "out", "cpu")
    logits = network(tuned.test.x.numpy())
    torch.testing.assert_close(logits.softmax(1), tuned.probabilities, rtol=1e-4, atol=1e-5)

    from fedssl.data import sets
    from fedssl.data.options import DataConfig
    from fedssl.use.trained import load_trained

    encoder = load_trained(run.path)
    train, test = sets.load(DataConfig(name="folder", root=str(photos), size=8, channels=1), 0)
    x, again = encoder(train.x.numpy()).double(), encoder(test.x.numpy()).double()
    scaler = StandardScaler().fit(x)
    # Mean loss + l2/2·‖w‖² over two softmax weights is scikit-learn's over one, at half the penalty.
    theirs = LogisticRegression(C=2 / (1e-3 * len(x)), tol=1e-9, max_iter=10_000)
    theirs.fit(scaler.transform(x), train.y)
    expected = theirs.predict_proba(scaler.transform(again))
    assert tuned.probabilities.numpy() == pytest.approx(expected, abs=2e-3)


def test_full_changes_the_encoder_and_lowers_the_training_loss(run: fedssl.Run, photos: Path, tmp_path: Path):
    finetune(run.path, photos, tmp_path / "linear", labels=8)
    finetune(run.path, photos, tmp_path / "full", labels=8, how="full", epochs=2, lr=1e-3)
    linear, full = (load_network(tmp_path / name, "cpu").network.state_dict() for name in ("linear", "full"))
    changed = [name for name in linear if not torch.equal(linear[name], full[name])]
    assert any("conv" in name for name in changed)
    assert not any("running" in name for name in changed)  # BatchNorm's statistics stay


def test_the_same_seed_gives_the_same_bits(run: fedssl.Run, photos: Path, tmp_path: Path):
    for name in ("a", "b"):
        finetune(run.path, photos, tmp_path / name, labels=4, how="full", epochs=1)
    a, b = ((tmp_path / name / "classifier.safetensors").read_bytes() for name in ("a", "b"))
    assert a == b


def test_names_in_the_page_are_escaped(run: fedssl.Run, photos: Path, tmp_path: Path):
    odd = tmp_path / "photos"
    for name, source in (("<b>&", "left"), ("right", "right")):
        (odd / name).mkdir(parents=True)
        for file in (photos / source).iterdir():
            (odd / name / file.name).write_bytes(file.read_bytes())
    text = page(finetune(run.path, odd, tmp_path / "out"))
    assert "<b>&<" not in text
    assert "&lt;b&gt;&amp;" in text


def test_bad_folders(run: fedssl.Run, photos: Path, tmp_path: Path):
    (tmp_path / "flat").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "flat" / "a.png")
    with pytest.raises(DataError, match="has no labels"):
        finetune(run.path, tmp_path / "flat", tmp_path / "out")
    (tmp_path / "one" / "only").mkdir(parents=True)
    for number in range(4):
        Image.new("L", (8, 8), number).save(tmp_path / "one" / "only" / f"{number}.png")
    with pytest.raises(DataError, match=r"one class \(only\)"):
        finetune(run.path, tmp_path / "one", tmp_path / "out")
    assert not (tmp_path / "out").exists()
