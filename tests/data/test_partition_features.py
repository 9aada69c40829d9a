"""Clusters of features instead of classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.small import small_run
from torch import nn

from fedssl.config import load
from fedssl.data import partition
from fedssl.data.federation import federate
from fedssl.data.images import ImageSet
from fedssl.data.partition_features import FeatureClusters, cluster_features, encoder_of, extract
from fedssl.errors import ConfigError, DataError


def blobs(per_blob: int = 60, blobs: int = 5, width: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Points around far-apart centers, shuffled, with the center of each point."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(blobs, width)) * 10
    owner = rng.permutation(np.repeat(np.arange(blobs), per_blob))
    return (centers[owner] + rng.normal(size=(len(owner), width))).astype(np.float32), owner


def pairs(labels: np.ndarray) -> np.ndarray:
    return labels[:, None] == labels[None]


def test_clusters_are_those_of_scikit_learn_and_of_the_blobs():
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    points, owner = blobs()
    found = cluster_features(points, clusters=5, components=30, seed=3)
    assert np.array_equal(pairs(found), pairs(owner))
    known = KMeans(5, n_init=10, random_state=0).fit_predict(PCA(30).fit_transform(points))
    assert np.array_equal(pairs(found), pairs(known))


def test_only_the_first_components_matter():
    """What PCA leaves out cannot make clusters: here the second direction, ten times as narrow."""
    rng = np.random.default_rng(1)
    points = np.stack([np.repeat([0.0, 100.0], 50), np.tile([0.0, 10.0], 50)], axis=1)
    points += rng.normal(size=points.shape) * 0.01
    found = cluster_features(points.astype(np.float32), clusters=2, components=1, seed=0)
    assert found.tolist() == [0] * 50 + [1] * 50 or found.tolist() == [1] * 50 + [0] * 50


def test_clusters_are_assigned_like_classes():
    points, owner = blobs()
    nothing = np.zeros(len(points), dtype=np.int64)  # labels that say nothing
    parts = partition(nothing, "feature-clusters", clients=5, features=points, clusters=5, beta=0.0)
    assert sorted(np.concatenate(parts)) == list(range(300))
    assert sorted(len(set(owner[part])) for part in parts) == [1] * 5  # β = 0: exclusive
    skewed = partition(nothing, "feature-clusters", clients=5, features=points, alpha=1e-4)
    spread = partition(nothing, "feature-clusters", clients=5, features=points, alpha=1e4)
    assert np.mean([len(set(owner[part])) for part in skewed]) < 2.5
    assert min(len(set(owner[part])) for part in spread) == 5
    assert all(30 <= len(part) <= 90 for part in skewed)


def test_the_partition_is_a_function_of_features_and_seed():
    points, _ = blobs()
    labels = np.zeros(len(points), dtype=np.int64)
    first, again, other = (
        partition(labels, "feature-clusters", clients=3, features=points, alpha=0.1, seed=seed)
        for seed in (0, 0, 1)
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_bad_input_is_named():
    labels = np.zeros(20, dtype=np.int64)
    with pytest.raises(DataError, match="need features"):
        partition(labels, "feature-clusters", clients=2)
    with pytest.raises(DataError, match=r"features \(19,\)"):
        partition(labels, "feature-clusters", clients=2, features=np.zeros((19, 3)))
    with pytest.raises(DataError, match=r"20 images are too few for partition\.clusters=21"):
        partition(labels, "feature-clusters", clients=2, features=np.zeros((20, 3)), clusters=21)
    with pytest.raises(ConfigError, match=r"partition\.features=nowhere has no encoder\.json"):
        encoder_of("nowhere", ImageSet(torch.zeros(2, 8, 8, 1, dtype=torch.uint8)))


# --- where features come from ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    return small_run(tmp_path_factory.mktemp("runs") / "encoder", rounds=1)


def test_pixels_are_features_too():
    images = ImageSet(torch.randint(0, 256, (5, 4, 4, 3), dtype=torch.uint8))
    found = FeatureClusters(clusters=2).extract_features(images)
    expected = images.x.permute(0, 3, 1, 2).reshape(5, -1).numpy() / 255
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_features_of_a_run_come_from_its_encoder(run):
    images = ImageSet(torch.randint(0, 256, (7, 8, 8, 1), dtype=torch.uint8))
    found = FeatureClusters(features=str(run.path)).extract_features(images)
    pixels = (images.x.permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.25
    with torch.no_grad():
        np.testing.assert_allclose(found, run.encoder(pixels).numpy(), rtol=1e-4, atol=1e-5)
    color = ImageSet(torch.zeros(3, 8, 8, 3, dtype=torch.uint8), name="photos")
    with pytest.raises(ConfigError, match=r"takes 1 channels, but photos has 3: set data\.channels=1"):
        FeatureClusters(features=str(run.path)).extract_features(color)


def test_timm_encoders_have_their_weights(monkeypatch: pytest.MonkeyPatch):
    import timm

    images = ImageSet(torch.randint(0, 256, (3, 8, 8, 1), dtype=torch.uint8))
    asked: list[tuple[str, object]] = []

    def create(name: str, **keys: object) -> nn.Module:
        asked.append((name, keys["pretrained"]))
        return nn.Flatten()

    monkeypatch.setattr(timm, "create_model", create)
    encoder, mean, std = encoder_of("timm:resnet50", images)
    assert asked == [("resnet50", True)]
    assert extract(encoder, images, mean, std).shape == (3, 64)

    def fail(name: str, **keys: object) -> nn.Module:
        raise OSError("no network")

    monkeypatch.setattr(timm, "create_model", fail)
    with pytest.raises(ConfigError, match=r"timm:resnet50 cannot be loaded from timm: no network"):
        encoder_of("timm:resnet50", images)


def test_a_run_can_be_partitioned_by_the_features_of_another(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(run.path.parent)
    keys = {"scheme": "feature-clusters", "features": "encoder", "clients": 3, "clusters": 4, "beta": 0.0}
    other = small_run(tmp_path / "a", partition=keys, rounds=1)
    # It can be brought back from anywhere: the path was made whole.
    monkeypatch.chdir(tmp_path)
    assert other.config.partition.features == str(run.path.resolve())
    federation = federate(other.config)
    stored = other.directory.partition()["indices"]
    assert [part.tolist() for part in federation.parts] == stored
    features = FeatureClusters(features=str(run.path)).extract_features(federation.train)
    expected = partition(federation.train.y.numpy(), seed=0, **{**keys, "features": features})
    assert [part.tolist() for part in expected] == stored


def test_held_out_images_are_not_assigned(tmp_path: Path):
    keys = {"data": {"name": "digits", "limit": 100, "holdout": 0.2}}
    federation = federate(load(keys, {"partition": {"scheme": "feature-clusters", "clients": 2}}))
    dealt = np.concatenate(federation.parts)
    assert len(dealt) + len(federation.labeled) == 100
    assert not set(dealt) & set(federation.labeled)
