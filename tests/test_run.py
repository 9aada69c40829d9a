"""A complete run: its files, and that its parts agree."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import fedssl
from fedssl.errors import ConfigError, DataError
from tests.small import SMALL, small_run

PROBED = {"probe.protocol": "linear", "probe.every": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("runs") / "a", objective="byol", method="fedema", **PROBED)


def test_the_directory_contains_all_documented_files(run):
    names = {file.name for file in run.path.iterdir()}
    assert {
        "config.toml",
        "metrics.jsonl",
        "result.json",
        "checkpoints",
        "encoder.safetensors",
        "encoder.json",
        "partition.json",
        "partition.png",
    } <= names
    assert (
        fedssl.run(run.path / "config.toml", out=run.path.parent / "again", quiet=True).config == run.config
    )


def test_metrics_have_a_line_per_round(run):
    assert [line["round"] for line in run.metrics] == [1, 2, 3]
    for line in run.metrics:
        assert {"loss", "divergence", "seconds", "views", "clients", "failed"} <= set(line)
        assert line["loss"] == pytest.approx(
            sum(c["loss"] * c["images"] for c in line["clients"]) / sum(c["images"] for c in line["clients"])
        )
    assert "probe" not in run.metrics[0]
    assert 0 <= run.metrics[1]["probe"]["knn"] <= 1
    assert all("mu" not in client for client in run.metrics[0]["clients"])
    assert all(client["mu"] == pytest.approx(0.7, abs=0.05) for client in run.metrics[1]["clients"])


def test_the_result_describes_its_numbers(run):
    linear, knn = run.result["probes"]
    assert (linear["protocol"], knn["protocol"]) == ("linear", "knn")
    assert linear["model"] == "global"
    assert linear["images"] == "digits: 100 train, 359 test"
    assert linear["gain"] == pytest.approx(linear["accuracy"] - linear["untrained"])
    assert len(linear["per_class"]) == 10
    assert {"views_per_second", "seconds", "peak_memory_mb", "versions"} <= set(run.result)


def test_the_partition_is_stored(run):
    stored = run.directory.partition()
    assert sum(stored["sizes"]) == 100
    assert sorted(index for part in stored["indices"] for index in part) == list(range(100))
    assert stored["earth_movers_distance"] == pytest.approx(0.8)  # 2 of 10 classes each


def test_a_later_probe_agrees_with_the_one_of_the_run(run):
    assert run.probe("linear")["accuracy"] == run.result["probes"][0]["accuracy"]
    assert run.probe("linear")["untrained"] == run.result["probes"][0]["untrained"]
    assert run.probe("linear", **{"probe.labels": 0.5})["images"] == "digits: 50 train, 359 test"


def test_the_encoder_loads_into_timm_without_fedssl(run, tmp_path):
    images = torch.rand(4, 1, 8, 8)
    torch.save(images, tmp_path / "images.pt")
    from fedssl.models import rebuild

    code = (
        "import sys, json, torch\n"
        "sys.modules['fedssl'] = None\n"  # an import of fedssl would fail
        f"exec(open({rebuild.__file__!r}).read())\n"
        "from safetensors.torch import load_file\n"
        f"encoder = rebuild(json.load(open({str(run.path / 'encoder.json')!r})))\n"
        f"encoder.load_state_dict(load_file({str(run.path / 'encoder.safetensors')!r}))\n"
        f"features = encoder.eval()(torch.load({str(tmp_path / 'images.pt')!r}))\n"
        "assert type(encoder).__module__.startswith('timm.')\n"
        f"torch.save(features, {str(tmp_path / 'features.pt')!r})\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with torch.no_grad():
        expected = run.encoder(images)
    # The rebuilt module and the one that was trained may order their sums differently.
    torch.testing.assert_close(torch.load(tmp_path / "features.pt"), expected, rtol=1e-5, atol=1e-6)


def test_the_exported_encoder_is_the_one_that_was_probed(run):
    from fedssl.evaluation.loaded import load_run

    finished = load_run(run.directory, {})
    encoder = finished.models.exported(finished.server, finished.memory_rounds).module
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, run.encoder.state_dict()[name]), name


def test_other_protocols(run, tmp_path):
    images, labels = np.zeros((40, 8, 8, 1), np.uint8), np.arange(40) % 4
    images[np.arange(40), labels] = 255
    np.savez(tmp_path / "other_train.npz", x=images, y=labels)
    np.savez(tmp_path / "other_test.npz", x=images, y=labels)
    found = run.probe("transfer", **{"data.name": "npz", "data.root": str(tmp_path / "other_train.npz")})
    assert found["pretrained_on"] == "digits"
    assert "other" in found["images"]
    personal = run.probe("personal")
    assert [row["client"] for row in personal["clients"]] == [0, 1, 2, 3, 4]
    with pytest.raises(ConfigError, match="another data set"):
        run.probe("transfer")
    with pytest.raises(ConfigError, match="did you mean linear"):
        run.probe("linaer")
    with pytest.raises(ConfigError, match=r"data\.holdout"):
        run.probe("semi")


def test_semi_supervised_uses_only_images_that_pretraining_did_not_see(tmp_path):
    run = small_run(tmp_path / "a", rounds=1, **{"data.holdout": 0.2})
    partition = run.directory.partition()
    assert sum(partition["sizes"]) == 80
    found = run.probe("semi", **{"semi.epochs": 3, "semi.hidden": 16, "semi.batch_size": 8})
    assert found["labelled"] == 20
    assert 0 <= found["accuracy"] <= 1
    with pytest.raises(ConfigError, match=r"only 0\.2 was held out"):
        run.probe("semi", **{"semi.labels": 0.5})


def test_standalone_evaluates_the_clients_own_encoders(tmp_path):
    run = small_run(tmp_path / "a", method="standalone", **{"probe.protocol": "knn", "probe.clients": 3})
    assert run.result["probes"][0]["model"] == "personal, mean of 3 clients"


def test_centralized_has_one_client_with_everything(tmp_path):
    run = small_run(tmp_path / "a", method="centralized", rounds=1)
    assert run.directory.partition()["sizes"] == [100]


def test_a_folder_of_odd_images_trains(tmp_path):
    folder, rng = tmp_path / "photos", np.random.default_rng(0)
    folder.mkdir()
    for number in range(12):
        Image.fromarray(rng.integers(0, 255, (20, 24, 3), dtype=np.uint8)).save(folder / f"{number}.jpg")
    Image.fromarray(rng.integers(0, 255, (20, 20), dtype=np.uint8)).save(folder / "grey.jpg")
    Image.fromarray(rng.integers(0, 255, (20, 20, 4), dtype=np.uint8)).save(folder / "rgba.png")
    Image.new("RGB", (1, 1)).save(folder / "dot.png")
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff not a picture")
    settings = {
        **SMALL,
        "data": {"name": "folder", "root": str(folder)},
        "partition": {"scheme": "iid", "clients": 3},
    }
    command = [
        sys.executable,
        "-c",
        f"import fedssl; fedssl.run({settings!r}, out={str(tmp_path / 'run')!r})",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "broken.jpg" in done.stdout
    run = fedssl.Run(tmp_path / "run")
    assert sum(run.directory.partition()["sizes"]) == 15
    assert run.result["probes"] == []
    assert "no labels" in run.result["why_no_probes"]
    with pytest.raises(DataError, match="no labels"):
        run.probe("linear")


def test_protocols_that_need_labels_raise_a_clear_error(tmp_path):
    images = np.zeros((20, 8, 8, 1), np.uint8)
    np.savez(tmp_path / "x.npz", x=images)
    data = {"data": {"name": "npz", "root": str(tmp_path / "x.npz")}}
    with pytest.raises(DataError, match="needs labels"):
        fedssl.run(
            {**SMALL, **data, "partition": {"scheme": "iid"}},
            objective="supervised",
            quiet=True,
            out=tmp_path / "a",
        )
    with pytest.raises(DataError, match="iid"):
        fedssl.run({**SMALL, **data}, quiet=True, out=tmp_path / "b")


def test_tensorboard_events_are_written_where_it_is_installed(tmp_path):
    pytest.importorskip("tensorboard")
    run = small_run(tmp_path / "a", rounds=1, **{"log.tensorboard": True})
    assert list((run.path / "tensorboard").glob("events*"))


def test_a_full_disk_stops_the_run_and_it_can_be_resumed(tmp_path, monkeypatch):
    import errno

    from fedssl import tensorfile
    from fedssl.errors import RunError

    whole = small_run(tmp_path / "whole", objective="byol")
    real, calls = tensorfile.save_file, []

    def full(*arguments, **keys):
        calls.append(1)
        if len(calls) == 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*arguments, **keys)

    monkeypatch.setattr(tensorfile, "save_file", full)
    with pytest.raises(RunError, match="disk full"):
        small_run(tmp_path / "a", objective="byol")
    monkeypatch.setattr(tensorfile, "save_file", real)
    resumed = fedssl.resume(tmp_path / "a", quiet=True)
    assert json.dumps([line["loss"] for line in resumed.metrics]) == json.dumps(
        [line["loss"] for line in whole.metrics]
    )
