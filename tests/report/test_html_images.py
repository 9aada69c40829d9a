"""The parts that need images: map and neighbors of a real, tiny run."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
import torch
from PIL import Image

from fedssl.config import load
from fedssl.data.federation import federate
from fedssl.data.images import ImageSet
from fedssl.evaluation.loaded import load_run
from fedssl.report.html import images as module
from fedssl.report.html.images import NEIGHBORS, STRIPS, gallery, look, project, queries
from fedssl.rundir import RunDir
from tests.small import small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    keys = {
        "rounds": 1,
        "shift": "rotation",
        "partition.clients": 4,
        "partition.classes": 3,
        "probe.protocol": "knn",
    }
    return small_run(tmp_path_factory.mktemp("images") / "run", **keys)


@pytest.fixture(scope="module")
def seen(run):
    told = []
    found = look(run.path, "pca", lambda done, total, what: told.append((done, total)))
    assert told[-1] == (4, 4)
    return found


def test_the_gallery_shows_images_with_client_shifts(run):
    """Client 2 of 4 turns its images by half a turn; partition.json says whose they are."""
    back = load_run(run.directory, {})
    images, owners = gallery(back)
    assert len(images) == len(owners) == 100
    assert np.bincount(owners).tolist() == run.directory.partition()["sizes"]
    stored = run.directory.partition()["indices"][2]
    upright = federate(run.config).train.x[torch.tensor(stored)]
    turned = {image.rot90(2).contiguous().numpy().tobytes() for image in upright}
    assert {images.x[int(place)].numpy().tobytes() for place in np.flatnonzero(owners == 2)} == turned


def test_the_map_has_every_image_with_class_and_client(run, seen):
    drawn = seen["map"]
    assert len(drawn["x"]) == len(drawn["y"]) == drawn["of"] == 100
    assert 0 <= min(drawn["x"] + drawn["y"]) <= max(drawn["x"] + drawn["y"]) <= 1
    assert set(drawn["kinds"]) == {"class", "client"}
    sizes = np.bincount(drawn["kinds"]["client"]["of"]).tolist()
    assert sizes == run.directory.partition()["sizes"]
    sheet = Image.open(io.BytesIO(base64.b64decode(drawn["sprite"]["uri"].split(",")[1])))
    assert sheet.size == (10 * drawn["sprite"]["side"], 10 * drawn["sprite"]["side"])
    assert seen["whose"] == "global"


def test_neighbors_are_those_of_a_naive_search(run, seen):
    back = load_run(run.directory, {})
    encoder = back.models.exported(back.server, back.memory_rounds).module.eval()
    images, owners = gallery(back)
    test = back.federation.test
    assert test is not None

    def unit(x):
        with torch.no_grad():
            features = encoder((x.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25).double().numpy()
        return features / np.linalg.norm(features, axis=1, keepdims=True)

    known = unit(images.x)
    asked = queries(test, 0)
    for strip, query in zip(seen["strips"], asked, strict=True):
        cosines = known @ unit(test.x[int(query)].expand(2, -1, -1, -1))[0]
        best = np.argsort(-cosines)[:NEIGHBORS]
        assert [near["cosine"] for near in strip["nearest"]] == pytest.approx(
            cosines[best].tolist(), abs=2e-4
        )
        assert strip["nearest"][0]["client"] == owners[best[0]]
        assert strip["query"]["class"] == test.classes[int(test.y[int(query)])]
        picture = Image.open(io.BytesIO(base64.b64decode(strip["query"]["uri"].split(",")[1])))
        assert (np.asarray(picture) == test.x[int(query), :, :, 0].numpy()).all()


def test_holdings_count_the_labels(run):
    stored = run.directory.partition()
    labels = federate(run.config).train.y
    assert labels is not None
    for own, counts in zip(stored["indices"], stored["holdings"]["class"]["counts"], strict=True):
        kinds, numbers = np.unique(labels.numpy()[own], return_counts=True)
        assert counts == {str(kind): number for kind, number in zip(kinds, numbers.tolist(), strict=True)}


def test_the_stored_confusion_adds_up(run):
    (probe,) = run.result["probes"]
    counts = np.array(probe["confusion"])
    assert counts.trace() / counts.sum() == pytest.approx(probe["accuracy"])
    assert counts.sum(axis=1).tolist() == [row["count"] for row in probe["per_class"]]


def test_queries_cover_classes_and_are_deterministic():
    labels = torch.arange(60) % 30
    images = ImageSet(torch.zeros(60, 2, 2, 1, dtype=torch.uint8), labels, tuple(map(str, range(30))))
    asked = queries(images, 3)
    assert len(set(labels[torch.from_numpy(asked)].tolist())) == STRIPS
    assert asked.tolist() == queries(images, 3).tolist()
    assert len(set(queries(ImageSet(images.x), 3).tolist())) == STRIPS


@pytest.mark.parametrize("projection", ["tsne", "pca"])
def test_clusters_stay_together_on_the_map(projection):
    rng = torch.Generator().manual_seed(0)
    directions = torch.eye(16)[torch.arange(60) % 3]
    points = project(directions + 0.01 * torch.randn(60, 16, generator=rng), projection, 0)
    centers = np.stack([points[kind::3].mean(axis=0) for kind in range(3)])
    apart = np.linalg.norm(points[:, None] - centers, axis=2)
    assert (apart.argmin(axis=1) == np.arange(60) % 3).all()
    assert (project(directions, "pca", 0) == project(directions, "pca", 0)).all()


@pytest.mark.parametrize("number", [1, 2, 3, 12])
def test_a_map_of_few_images(number):
    points = project(torch.randn(number, 4, generator=torch.Generator().manual_seed(1)), "tsne", 0)
    assert points.shape == (number, 2)
    assert np.isfinite(points).all()


def test_the_map_of_collapsed_features_is_a_point():
    assert (project(torch.ones(15, 4), "tsne", 0) == 0.5).all()


def test_umap_is_used_on_request(monkeypatch):
    class Fake:
        def __init__(self, n_neighbors, random_state, n_jobs):
            assert n_neighbors == 11

        def fit_transform(self, components):
            return components[:, :2]

    monkeypatch.setattr(module.importlib, "import_module", lambda name: type("umap", (), {"UMAP": Fake}))
    features = torch.randn(12, 4, generator=torch.Generator().manual_seed(1))
    assert project(features, "umap", 0) == pytest.approx(project(features, "pca", 0))


def test_without_the_data_there_is_a_reason(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(6):
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    keys = {"data": {"name": "folder", "root": str(folder)}, "partition": {"scheme": "iid", "clients": 2}}
    run = small_run(tmp_path / "run", rounds=1, **keys)
    found = look(run.path, "pca")
    assert set(found["map"]["kinds"]) == {"client"}
    assert all(strip["query"]["class"] is None and len(strip["nearest"]) == 5 for strip in found["strips"])
    # Without a test split queries are images of clients: none is its own neighbor.
    assert all(strip["query"]["uri"] not in [n["uri"] for n in strip["nearest"]] for strip in found["strips"])
    folder.rename(tmp_path / "gone")
    found = look(run.path, "pca")
    assert found["missing"]
    assert "photos" in found["why_not"]


def test_before_the_first_checkpoint_there_is_a_reason(run, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "config.toml").write_bytes((run.path / "config.toml").read_bytes())
    assert "no checkpoint yet" in look(tmp_path / "new", "pca")["why_not"]


def test_images_at_sites_are_not_a_loading_error(tmp_path):
    keys = {"engine.name": "flower", "engine.sites": ["berlin"], "data.size": 8, "data.channels": 1}
    RunDir.create(tmp_path / "run", load({}, keys))
    assert (
        look(tmp_path / "run", "pca")["why_not"] == "The images are at the sites, so there is no feature map."
    )
