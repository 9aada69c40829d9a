"""Partitions with bounded sizes by a Markov chain, and clients that have only a share of their images."""

from __future__ import annotations

import numpy as np
import pytest

from fedssl.data import PARTITIONS, partition
from fedssl.data.partition_dirichlet import walk
from fedssl.data.partitions import earth_movers_distance
from fedssl.errors import ConfigError, DataError

BALANCED = np.repeat(np.arange(10), 60)
UNEVEN = np.repeat(np.arange(4), [97, 51, 203, 88])


def sizes(parts: list[np.ndarray]) -> np.ndarray:
    return np.array([len(part) for part in parts])


@pytest.mark.parametrize("alpha", [1e-4, 0.02, 1.0, 100.0])
@pytest.mark.parametrize(("labels", "clients"), [(BALANCED, 60), (UNEVEN, 7), (BALANCED, 1), (UNEVEN, 40)])
def test_every_image_is_assigned_once_and_sizes_are_within_bounds(labels, clients, alpha):
    parts = partition(labels, "dirichlet-bounded", clients=clients, alpha=alpha, sampler="chain", seed=1)
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))
    mean = len(labels) / clients
    assert max(0.5 * mean, 1) <= sizes(parts).min()
    assert sizes(parts).max() <= 1.5 * mean


def test_the_chain_draws_what_rejection_draws():
    """Both sample Dirichlet(α) given the bounds: means over seeds agree within four standard errors."""
    labels, seeds = np.repeat(np.arange(10), 100), range(40)
    drawn = {
        sampler: [
            partition(labels, "dirichlet-bounded", clients=4, alpha=0.1, sampler=sampler, seed=seed)
            for seed in seeds
        ]
        for sampler in ("rejection", "chain")
    }
    for measure in (
        lambda parts: earth_movers_distance(labels, parts),
        lambda parts: sizes(parts).std(),
        lambda parts: np.mean([len(np.unique(labels[part])) for part in parts]),
    ):
        a, b = (np.array([measure(parts) for parts in drawn[s]]) for s in ("rejection", "chain"))
        assert abs(a.mean() - b.mean()) < 4 * np.sqrt((a.var() + b.var()) / len(seeds))


def test_at_a_small_alpha_clients_have_few_classes_and_at_a_large_one_all():
    few = partition(BALANCED, "dirichlet-bounded", clients=60, alpha=0.01, sampler="chain")
    all_of_them = partition(BALANCED, "dirichlet-bounded", clients=6, alpha=1e4, sampler="chain")
    assert np.mean([len(np.unique(BALANCED[part])) for part in few]) < 3
    assert min(len(np.unique(BALANCED[part])) for part in all_of_them) == 10


def test_the_partition_is_a_function_of_the_seed():
    first, again, other = (
        partition(BALANCED, "dirichlet-bounded", clients=9, sampler="chain", seed=seed) for seed in (0, 0, 1)
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_bounds_that_no_partition_can_meet_are_an_error():
    groups = [np.arange(10)]
    with pytest.raises(DataError, match=r"3…4 images are as equal .* 3 clients .* not within 3\.3…3\.4"):
        walk(groups, 3, 0.1, 3.3, 3.4, np.random.default_rng(0))


def test_failed_rejection_sampling_suggests_the_chain():
    with pytest.raises(DataError, match=r"partition\.sampler=chain"):
        partition(BALANCED, "dirichlet-bounded", clients=60, alpha=0.01, tries=5)


# A share of the images


def options(scheme: str) -> dict[str, int]:
    return {"clients": 10} if scheme == "one-class" else {"clients": 5}


@pytest.mark.parametrize("scheme", sorted(set(PARTITIONS) - {"domain", "feature-clusters", "folder"}))
def test_every_client_keeps_a_share_of_its_images(scheme):
    whole = partition(BALANCED, scheme, **options(scheme))
    tenth = partition(BALANCED, scheme, amount=0.1, **options(scheme))
    half = partition(BALANCED, scheme, amount=0.5, **options(scheme))
    for all_of_it, more, less in zip(whole, half, tenth, strict=True):
        assert len(more) == max(1, round(0.5 * len(all_of_it)))
        assert len(less) == max(1, round(0.1 * len(all_of_it)))
        assert set(less) <= set(more) <= set(all_of_it)  # so that amounts are compared on the same images
        assert list(less) == sorted(less)


def test_at_least_one_image_remains_and_a_share_of_zero_is_invalid():
    assert [len(part) for part in partition(BALANCED[::100], "iid", clients=3, amount=0.01)] == [1, 1, 1]
    for wrong in (0.0, 1.1):
        with pytest.raises(ConfigError, match=r"partition\.amount"):
            partition(BALANCED, "iid", clients=3, amount=wrong)
