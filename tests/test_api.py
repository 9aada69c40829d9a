"""The methods of `Run` do the same as the commands."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedssl
from fedssl.use.embed import embed, read_parquet
from fedssl.use.trained import load_trained
from tests.small import arguments, small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedssl.Run:
    probe = {"every": 1, "protocol": "knn"}
    return small_run(tmp_path_factory.mktemp("api") / "run", rounds=2, probe=probe)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name, side in (("left", 0), ("right", 4)):
        (root / name).mkdir()
        for number in range(8):
            image = rng.integers(0, 60, (8, 8), dtype=np.uint8)
            image[:, side : side + 4] += 150
            Image.fromarray(image).save(root / name / f"{number}.png")
    return root


def test_a_report_goes_into_the_run(run):
    file = run.report(fast=True)
    assert file == run.path / "report.html"
    assert "Skipped: the report was made with --fast." in file.read_text(encoding="utf-8")


def test_embedding_and_searching(run, photos, tmp_path):
    found = run.embed(photos)
    expected = embed(load_trained(run.path), photos)
    assert found.paths == expected.paths
    assert bool((found.vectors == expected.vectors).all())
    written = run.embed(photos, tmp_path / "vectors.parquet")
    assert written.paths == found.paths
    assert bool((read_parquet(tmp_path / "vectors.parquet").vectors == found.vectors).all())
    query = photos / "left" / "0.png"
    for where in (photos, found, tmp_path / "vectors.parquet"):
        hits = run.search(query, where, count=3)
        assert hits[0][0].resolve() == query.resolve()
        assert hits[0][1] == pytest.approx(1.0, abs=1e-5)
        assert len(hits) == 3


def test_finetuning_and_exporting(run, photos, tmp_path):
    tuned = run.finetune(photos, tmp_path / "sides", labels=2)
    assert tuned.labelled == 4
    assert tuned.folder == tmp_path / "sides"
    files = run.export("safetensors", tmp_path / "encoder")
    assert [file.name for file in files] == ["encoder.safetensors", "encoder.py", "encoder.md"]
    assert all(file.exists() for file in files)


def test_a_notebook_shows_result_and_curves(run):
    shown = run._repr_html_()
    knn = run.result["probes"][0]
    assert f"<b>{100 * knn['accuracy']:.1f} %</b>" in shown
    assert f"{100 * knn['untrained']:.1f} %" in shown
    losses = [line["loss"] for line in run.metrics]
    assert f"loss: {losses[0]:.3g} in round 1, {losses[1]:.3g} in round 2" in shown
    # Two points span the picture: the first round at its left, the larger loss at its top.
    line = re.search(r"aria-label='loss'.*?points='([^']*)'", shown).group(1)
    (left, first), (right, last) = (map(float, point.split(",")) for point in line.split())
    assert (left, right) == (6, 234)
    assert (first < last) == (losses[0] > losses[1])
    assert "<script" not in shown


def test_a_notebook_shows_a_run_that_has_just_started(tmp_path):
    from tests.report.handmade import run_dir

    shown = fedssl.Run(run_dir(tmp_path / "a<b"))._repr_html_()
    assert "a&lt;b" in shown
    assert "no measurements yet" in shown


UNUSED = (
    "torchvision",
    "fedssl.papers",
    "fedssl.tables",
    "fedssl.generative",
    "fedssl.objectives.generative",
)


def test_a_run_loads_neither_papers_nor_detection_nor_generative_models(tmp_path):
    """What `import fedssl.api` loads, and what is loaded after a run on digits."""
    code = (
        "import sys, fedssl.api\n"
        f"loaded = lambda: sorted(name for name in sys.modules if name.startswith({UNUSED!r}))\n"
        "assert not loaded(), loaded()\n"
        "from fedssl.cli import main\n"
        f"assert main({['run', *arguments(rounds=1), '--quiet', '--out', str(tmp_path / 'run')]!r}) == 0\n"
        "assert not loaded(), loaded()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
