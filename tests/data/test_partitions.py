"""Every image is assigned once, sizes are as documented, draws follow theory, errors contain the numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fedssl.data import PARTITIONS, partition
from fedssl.data.partition_classes import _assign
from fedssl.data.partition_dirichlet import fill
from fedssl.data.partitions import (
    IID,
    Classes,
    Dirichlet,
    DirichletBounded,
    DirichletEqual,
    Domain,
    OneClass,
    Skew,
    earth_movers_distance,
)
from fedssl.errors import ConfigError, DataError
from fedssl.rng import numpy_rng

BALANCED = np.repeat(np.arange(10), 60)
# The class sizes of scikit-learn's digits, shuffled: nothing divides.
DIGITS = np.random.default_rng(0).permutation(
    np.repeat(np.arange(10), [178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
)
DOMAINS = np.repeat([0, 1, 2], [300, 200, 100])

SCHEMES: list[tuple[str, dict[str, Any]]] = [
    ("iid", {}),
    ("classes", {"classes": 2}),
    ("classes", {"classes": 3, "clients": 7}),
    ("classes", {"classes": 10}),
    ("dirichlet", {"alpha": 0.3}),
    ("dirichlet-bounded", {"alpha": 0.1}),
    ("dirichlet-equal", {"beta": 0.2}),
    ("skew", {"beta": 0.0}),
    ("skew", {"beta": 0.37, "clients": 7}),
    ("skew", {"beta": 1.0}),
    ("one-class", {"clients": 20, "equal": False}),
]


def counts(labels: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def sizes(parts: list[np.ndarray]) -> list[int]:
    return [len(part) for part in parts]


# All schemes


@pytest.mark.parametrize(("scheme", "options"), SCHEMES)
@pytest.mark.parametrize("labels", [BALANCED, DIGITS], ids=["balanced", "digits"])
def test_every_image_is_assigned_once_and_parts_are_sorted(scheme, options, labels):
    for seed in range(8):
        parts = partition(labels, scheme, seed=seed, **options)
        assert len(parts) == options.get("clients", 5)
        assert all(part.dtype == np.int64 and len(part) > 0 and np.all(np.diff(part) > 0) for part in parts)
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))


@pytest.mark.parametrize(("scheme", "options"), SCHEMES)
def test_same_seed_same_parts_other_seed_other_parts(scheme, options):
    first, again, other = (partition(DIGITS, scheme, seed=seed, **options) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    if (scheme, options) == ("skew", {"beta": 0.0}):  # whole classes, in order: nothing is random
        assert all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    else:
        assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(("scheme", "options"), SCHEMES)
def test_labels_are_only_names(scheme, options):
    plain = partition(DIGITS, scheme, seed=1, **options)
    renamed = partition(DIGITS * 7 - 3, scheme, seed=1, **options)
    assert all(np.array_equal(a, b) for a, b in zip(plain, renamed, strict=True))


def test_global_random_state_is_neither_used_nor_changed():
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    first = partition(DIGITS, "dirichlet", seed=2)
    np.testing.assert_array_equal(before, np.random.get_state()[1])
    np.random.seed(1)
    assert all(
        np.array_equal(a, b) for a, b in zip(first, partition(DIGITS, "dirichlet", seed=2), strict=True)
    )


def test_one_client_or_clients_of_one_image_are_valid():
    for scheme, options in SCHEMES:
        if scheme not in ("one-class", "classes"):
            (part,) = partition(BALANCED, scheme, **{**options, "clients": 1})
            np.testing.assert_array_equal(part, np.arange(600))
    for scheme in ("iid", "dirichlet-equal", "skew"):
        parts = partition(np.arange(6) % 3, scheme, clients=6)
        assert sizes(parts) == [1] * 6
    assert sizes(partition(np.arange(6), "classes", clients=6, classes=1)) == [1] * 6


def test_every_scheme_has_valid_defaults():
    for name in PARTITIONS:
        assert PARTITIONS.get(name)().scheme == name
        for field in PARTITIONS.get(name).model_fields.values():
            assert field.description


def test_more_clients_than_images_is_an_error_with_the_numbers():
    for scheme in ("iid", "classes", "dirichlet", "dirichlet-bounded", "dirichlet-equal", "skew"):
        with pytest.raises(DataError, match=r"3 images .* 4 clients.*partition\.clients=3"):
            partition([0, 1, 2], scheme, clients=4)


def test_schemes_that_need_labels_raise_a_clear_error():
    rules = [Classes(), Dirichlet(), DirichletBounded(), DirichletEqual(), Skew(), OneClass()]
    for rule in rules:
        with pytest.raises(DataError, match=rf"scheme={rule.scheme} needs labels.*partition\.scheme=iid"):
            rule.split(None, 0, count=100)


def test_shapes_that_do_not_fit_are_errors():
    with pytest.raises(DataError, match=r"labels \(3,\), count \(4,\)"):
        IID().split(np.zeros(3, dtype=np.int64), 0, count=4)
    with pytest.raises(DataError, match=r"labels \(3,\), domains \(2,\)"):
        IID().split(np.zeros(3, dtype=np.int64), 0, np.zeros(2, dtype=np.int64))
    with pytest.raises(DataError, match=r"labels \(3, 1\)"):
        IID().split(np.zeros((3, 1), dtype=np.int64), 0)
    with pytest.raises(DataError, match="needs labels, domains or count"):
        IID().split(None, 0)


def test_bad_options_are_config_errors():
    for options in (
        {"scheme": "dirichlet", "alpha": 0},
        {"scheme": "skew", "beta": 1.5},
        {"scheme": "iid", "x": 1},
    ):
        with pytest.raises(ConfigError, match=r"partition\."):
            partition([0, 1], **options)
    with pytest.raises(ConfigError, match="did you mean dirichlet"):
        partition([0, 1], scheme="dirichlett")


# IID


def test_iid_sizes_differ_by_at_most_one_and_labels_are_not_needed():
    parts = IID(clients=7).split(None, 0, count=100)
    assert sorted(sizes(parts)) == [14] * 5 + [15] * 2
    labeled = IID(clients=7).split(np.arange(100) % 3, 0)
    assert all(np.array_equal(a, b) for a, b in zip(parts, labeled, strict=True))


def test_iid_puts_every_image_everywhere_equally_often():
    where = np.zeros((4, 8))
    for seed in range(2000):
        for client, part in enumerate(IID(clients=4).split(None, seed, count=8)):
            where[client, part] += 1
    assert stats.chisquare(where.ravel()).pvalue > 1e-3


# Classes


@pytest.mark.parametrize("own", [2, 4, 6, 8, 10])
def test_classes_of_the_paper_are_equal_sets_of_different_classes(own):
    """FedEMA: K=5, C=10: each class is cut into l/2 equal sets."""
    for seed in range(5):
        table = counts(BALANCED, partition(BALANCED, "classes", clients=5, classes=own, seed=seed))
        assert ((table > 0).sum(1) == own).all()
        assert ((table > 0).sum(0) == own // 2).all()
        assert set(table[table > 0]) == {60 // (own // 2)}
        assert (table.sum(1) == 120).all()


@pytest.mark.parametrize(
    ("clients", "own", "classes"),
    [(4, 3, 10), (7, 3, 10), (3, 4, 5), (13, 7, 9), (9, 2, 4), (5, 9, 10), (40, 3, 100)],
)
def test_classes_that_do_not_divide_differ_by_at_most_one_set(clients, own, classes):
    labels = np.repeat(np.arange(classes), 120)
    for seed in range(5):
        table = counts(labels, partition(labels, "classes", clients=clients, classes=own, seed=seed))
        held = table > 0
        assert (held.sum(1) == own).all()
        assert np.ptp(held.sum(0)) <= 1
        for group in range(classes):
            assert np.ptp(table[held[:, group], group]) <= 1
        # Clients differ by no more than one large set for a small one, and the images that do not divide.
        few, many = 120 / held.sum(0).min(), 120 / held.sum(0).max()
        assert np.ptp(table.sum(1)) <= few - many + own


def test_classes_left_over_images_go_to_the_smallest_clients():
    """Seven images a class and all classes on all of three clients: 7·5 = 35 = 12 + 12 + 11."""
    labels = np.repeat(np.arange(5), 7)
    for seed in range(10):
        assert sorted(sizes(partition(labels, "classes", clients=3, classes=5, seed=seed))) == [11, 12, 12]


def test_classes_cut_the_largest_ones_once_more():
    """Three clients × one class over the classes of 10 and 20 images: the larger one is shared."""
    labels = np.repeat([0, 1], [10, 20])
    for seed in range(5):
        table = counts(labels, partition(labels, "classes", clients=3, classes=1, seed=seed))
        assert sorted(map(tuple, table)) == [(0, 10), (0, 10), (10, 0)]


def test_classes_assigns_every_possibility_equally_often():
    """Four clients with two of four classes, each on two of them: there are 90 such tables."""
    seen = Counter(_assign(np.full(4, 2), 4, 2, np.random.default_rng(seed)).tobytes() for seed in range(540))
    assert len(seen) == 90
    assert stats.chisquare(list(seen.values())).pvalue > 1e-3


def test_classes_errors_carry_the_numbers():
    with pytest.raises(DataError, match=r"partition\.classes=11, but the data set has 10 classes"):
        partition(BALANCED, "classes", classes=11)
    with pytest.raises(
        DataError, match=r"3 clients × 3 classes = 9 sets .* 10 classes.*partition\.classes=4"
    ):
        partition(BALANCED, "classes", clients=3, classes=3)
    with pytest.raises(DataError, match="3 sets of every class, but one class has only 2 images"):
        partition([0, 0, 1, 1, 1, 1], "classes", clients=3, classes=2)


# One class


def test_one_class_a_client_in_equal_sizes():
    for clients in (10, 20, 30):
        parts = partition(DIGITS, "one-class", clients=clients)
        table = counts(DIGITS, parts)
        assert set(sizes(parts)) == {174 // (clients // 10)}
        assert [list(np.flatnonzero(row)) for row in table] == [[k % 10] for k in range(clients)]
        assert len(np.unique(np.concatenate(parts))) == sum(sizes(parts))


def test_one_class_may_keep_every_image():
    parts = partition(DIGITS, "one-class", clients=10, equal=False)
    assert sizes(parts) == list(np.bincount(DIGITS))


def test_one_class_errors_carry_the_numbers():
    with pytest.raises(
        DataError, match=r"15 clients are not a multiple of 10 classes: use partition\.clients=10"
    ):
        partition(BALANCED, "one-class", clients=15)
    with pytest.raises(DataError, match=r"5 clients .* 10 classes: use partition\.clients=10"):
        partition(BALANCED, "one-class", clients=5)
    with pytest.raises(DataError, match="2 clients share each class, but one class has only 1 images"):
        partition([0, 1, 1, 1], "one-class", clients=4)


# Skew


def test_skew_zero_gives_contiguous_exclusive_classes():
    labels = np.array([3, 1, 0, 2] * 3)
    parts = partition(labels, "skew", clients=2, beta=0.0)
    assert [sorted(set(labels[part])) for part in parts] == [[0, 1], [2, 3]]
    for clients in range(1, 11):
        held = counts(DIGITS, partition(DIGITS, "skew", clients=clients, beta=0.0)) > 0
        assert (held.sum(0) == 1).all()
        assert (held.sum(1) >= 1).all()


def test_skew_zero_cuts_where_sizes_are_most_even():
    labels = np.repeat(np.arange(5), [10, 10, 40, 10, 10])
    assert sizes(partition(labels, "skew", clients=3, beta=0.0)) == [20, 40, 20]
    assert sizes(partition(labels, "skew", clients=2, beta=0.0)) in ([20, 60], [60, 20])
    # Every block has a class, wherever the large one is.
    labels = np.repeat(np.arange(4), [70, 1, 1, 1])
    assert sizes(partition(labels, "skew", clients=4, beta=0.0)) == [70, 1, 1, 1]
    labels = np.repeat(np.arange(4), [1, 1, 1, 70])
    assert sizes(partition(labels, "skew", clients=4, beta=0.0)) == [1, 1, 1, 70]


def test_skew_with_more_clients_than_classes_has_equal_blocks():
    parts = partition(np.repeat(np.arange(3), 8), "skew", clients=6, beta=0.0)
    assert sizes(parts) == [4] * 6
    assert [set(np.repeat(np.arange(3), 8)[part]) for part in parts] == [{0}, {0}, {1}, {1}, {2}, {2}]


def test_skew_share_is_iid_and_the_rest_exclusive():
    """β=0.4, ten classes of 500 on five clients: 1000 images each, 600 of its own two classes."""
    labels = np.repeat(np.arange(10), 500)
    parts = partition(labels, "skew", clients=5, beta=0.4, seed=1)
    table = counts(labels, parts)
    assert sizes(parts) == [1000] * 5
    for client in range(5):
        own = table[client, 2 * client : 2 * client + 2]
        foreign = np.delete(table[client], [2 * client, 2 * client + 1])
        assert (own >= 300).all()
        # 400 IID images over ten classes: 40 ± 6 of each.
        assert np.abs(own - 300 - 40).max() < 25
        assert np.abs(foreign - 40).max() < 25


def test_skew_never_leaves_a_client_empty():
    for count in range(10, 24):
        for beta in (0.0, 0.25, 0.5, 0.75, 1.0):
            labels = np.arange(count) % 7
            assert min(sizes(partition(labels, "skew", clients=10, beta=beta))) >= 1


# Dirichlet over clients


def naive_dirichlet(labels, clients, alpha, seed, accepts):
    """One try, one class at a time."""
    rng = numpy_rng(seed, "partition")
    order = rng.permutation(len(labels))
    while True:
        parts: list[list[int]] = [[] for _ in range(clients)]
        for label in sorted(set(labels)):
            images = [i for i in order if labels[i] == label]
            start, total = 0, 0.0
            shares = rng.dirichlet([alpha] * clients)
            for client in range(clients):
                total += shares[client]
                end = len(images) if client == clients - 1 else round(total * len(images))
                parts[client] += images[start:end]
                start = end
        if accepts([len(part) for part in parts]):
            return parts


def test_dirichlet_agrees_with_a_naive_implementation():
    for seed in range(5):
        expected = naive_dirichlet(BALANCED, 6, 0.05, seed, lambda sizes: min(sizes) >= 20)
        parts = partition(BALANCED, "dirichlet", clients=6, alpha=0.05, min_size=20, seed=seed)
        assert [list(part) for part in parts] == [sorted(part) for part in expected]


def test_bounded_dirichlet_agrees_with_a_naive_implementation():
    for seed in range(5):
        expected = naive_dirichlet(BALANCED, 5, 0.1, seed, lambda s: min(s) >= 60 and max(s) <= 180)
        parts = partition(BALANCED, "dirichlet-bounded", clients=5, alpha=0.1, seed=seed)
        assert [list(part) for part in parts] == [sorted(part) for part in expected]


@pytest.mark.parametrize("alpha", [0.1, 0.5, 5.0])
def test_dirichlet_shares_have_the_mean_and_variance_of_theory(alpha):
    """A share has mean 1/K and variance (1/K)(1−1/K)/(Kα+1)."""
    labels, clients = np.repeat(np.arange(20), 1000), 4
    shares = np.concatenate(
        [
            counts(labels, partition(labels, "dirichlet", clients, seed, alpha=alpha)) / 1000
            for seed in range(60)
        ],
        axis=1,
    )
    variance = 0.25 * 0.75 / (clients * alpha + 1)
    standard_error = np.sqrt(variance / shares.shape[1])
    assert np.abs(shares.mean(1) - 0.25).max() < 4 * standard_error
    assert shares.var() == pytest.approx(variance, rel=0.08)


def test_dirichlet_shares_follow_the_beta_distribution():
    """The marginal of Dirichlet(1, 1, 1, 1) is Beta(1, 3)."""
    labels = np.repeat(np.arange(20), 1000)
    shares = [
        counts(labels, partition(labels, "dirichlet", 4, seed, alpha=1.0))[0] / 1000 for seed in range(40)
    ]
    assert stats.kstest(np.concatenate(shares), stats.beta(1, 3).cdf).pvalue > 1e-3


def test_dirichlet_keeps_to_the_smallest_size():
    for seed in range(10):
        parts = partition(DIGITS, "dirichlet", clients=20, alpha=0.1, min_size=15, seed=seed)
        assert min(sizes(parts)) >= 15
    for alpha in (1e-6, 1e6):
        assert sum(sizes(partition(DIGITS, "dirichlet", clients=3, alpha=alpha))) == 1797


def test_dirichlet_gives_up_with_the_numbers():
    with pytest.raises(DataError, match=r"α=0\.001.* 5 clients and 2 classes .* 7 tries \(best: 0\)"):
        partition(np.arange(100) % 2, "dirichlet", clients=5, alpha=0.001, tries=7)
    with pytest.raises(DataError, match=r"partition\.min_size=200 × 5 clients need 1000 images.* 600"):
        partition(BALANCED, "dirichlet", clients=5, min_size=200)


def test_bounded_dirichlet_succeeds_at_the_papers_hardest_setting():
    """About one try in eight succeeds, so 200 of them fail once in 10¹¹ requests."""
    for labels in (BALANCED, DIGITS, np.repeat(np.arange(10), 5000)):
        for seed in range(15):
            parts = partition(labels, "dirichlet-bounded", clients=5, alpha=0.02, tries=200, seed=seed)
            mean = len(labels) / 5
            assert 0.5 * mean <= min(sizes(parts))
            assert max(sizes(parts)) <= 1.5 * mean


def test_bounded_dirichlet_gives_up_with_the_numbers():
    with pytest.raises(DataError) as error:
        partition(BALANCED, "dirichlet-bounded", clients=60, alpha=0.01, tries=50)
    for told in ("α=0.01", "60 clients", "50 tries", "5…15", "± 50%", "partition.tolerance"):
        assert told in str(error.value)
    # The best sizes in the message are from a real try: no client of 60 can have more than all images.
    best = str(error.value).split("the best were ")[1].split(":")[0].split("…")
    assert 0 <= int(best[0]) < 5
    assert 15 < int(best[1]) <= 600


# Dirichlet over classes


def test_fill_follows_wants_until_classes_are_exhausted():
    rng = np.random.default_rng(0)
    # Both want class 0 only; there are two images of it, so they take one each.
    both = fill(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([2, 2]), np.array([2, 2]), rng)
    assert both.tolist() == [[1, 1], [1, 1]]
    # They ask for 3 + 6 of the six images of class 0 and get 2 + 4; class 1 makes up for the rest.
    shared = fill(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([6, 6]), np.array([6, 6]), rng)
    assert shared.tolist() == [[2, 4], [4, 2]]
    # Class 0 runs out, the rest comes from classes 1 and 2 as 1 to 2.
    rest = fill(np.array([[0.4, 0.2, 0.4]]), np.array([10]), np.array([1, 20, 20]), rng)
    assert rest.tolist() == [[1, 3, 6]]
    # Nothing asked for is left: what there is goes in proportion.
    forced = fill(np.array([[1.0, 0.0, 0.0]]), np.array([6]), np.array([0, 4, 8]), rng)
    assert forced.tolist() == [[0, 2, 4]]


def test_fill_keeps_both_margins():
    rng = np.random.default_rng(1)
    for beta in (1e-3, 0.1, 1.0, 100.0):
        for _ in range(20):
            clients, classes = rng.integers(1, 12, size=2)
            supply = rng.integers(0, 50, size=classes) + 1
            take = rng.multinomial(supply.sum(), np.full(clients, 1 / clients))
            amounts = fill(rng.dirichlet(np.full(classes, beta), size=clients), take, supply, rng)
            assert (amounts >= 0).all()
            np.testing.assert_array_equal(amounts.sum(1), take)
            np.testing.assert_array_equal(amounts.sum(0), supply)


def test_fill_rounds_without_bias():
    """A client of one image has class c with the chance it wants it."""
    wants, drawn = np.array([0.5, 0.3, 0.15, 0.05]), np.zeros(4)
    for seed in range(2000):
        drawn += fill(wants[None], np.array([1]), np.full(4, 5), np.random.default_rng(seed))[0]
    assert stats.chisquare(drawn, 2000 * wants).pvalue > 1e-3


def test_equal_dirichlet_has_equal_sizes_and_grows_even_with_beta():
    distances = []
    for beta in (0.01, 0.1, 1.0, 10.0, 1000.0):
        found = []
        for seed in range(5):
            parts = partition(DIGITS, "dirichlet-equal", clients=7, beta=beta, seed=seed)
            assert sorted(sizes(parts)) == [256] * 2 + [257] * 5
            found.append(earth_movers_distance(DIGITS, parts))
        distances.append(np.mean(found))
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0.6
    assert distances[-1] < 0.03


# Domains


def test_domain_clients_have_one_style_and_the_average_size():
    labels = np.arange(600) % 10
    for each in (1, 5, 10):
        parts = partition(labels, "domain", domains=DOMAINS, per_domain=each, clients=3 * each)
        assert sizes(parts) == [200 // each] * (3 * each)
        for client, part in enumerate(parts):
            assert set(DOMAINS[part]) == {client // each}
            assert np.all(np.diff(part) >= 0)


def test_domain_repeats_images_only_of_small_styles_and_evenly():
    parts = partition(np.zeros(600), "domain", domains=DOMAINS, per_domain=2, clients=6)
    used = np.bincount(np.concatenate(parts), minlength=600)
    assert Counter(used[:300]) == {1: 200, 0: 100}  # a subset of the large style
    assert Counter(used[300:500]) == {1: 200}
    assert Counter(used[500:]) == {2: 100}
    uneven = np.repeat([0, 1], [70, 30])
    used = np.bincount(
        np.concatenate(partition(np.zeros(100), "domain", domains=uneven, clients=2)), minlength=100
    )
    assert Counter(used[70:]) == {2: 20, 1: 10}


def test_domain_without_equal_assigns_every_image_once():
    labels = np.arange(600) % 10
    for beta in (None, 0.3):
        rule = Domain(clients=12, per_domain=4, equal=False, classes_beta=beta)
        parts = rule.split(labels, 0, DOMAINS)
        assert sizes(parts) == [75] * 4 + [50] * 4 + [25] * 4
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(600))


def test_domain_classes_follow_the_dirichlet_draw():
    """With repeats nothing binds: mean 1/C and variance (1/C)(1−1/C)/(Cβ+1), even for one client."""
    labels, domains, beta = np.tile(np.arange(5), 400), np.repeat([0, 1], 1000), 0.5
    shares = []
    for seed in range(150):
        parts = Domain(clients=2, classes_beta=beta).split(labels, seed, domains)
        assert sizes(parts) == [1000, 1000]
        shares.append(counts(labels, parts) / 1000)
    flat = np.concatenate(shares)
    variance = 0.2 * 0.8 / (5 * beta + 1)
    assert np.abs(flat.mean(0) - 0.2).max() < 4 * np.sqrt(variance / len(flat))
    assert flat.var() == pytest.approx(variance, rel=0.12)


def test_domain_uses_the_images_of_a_class_equally_often():
    labels = np.tile(np.arange(5), 40)
    for seed in range(10):
        parts = Domain(clients=4, per_domain=2, classes_beta=0.2).split(labels, seed, np.repeat([0, 1], 100))
        used = np.bincount(np.concatenate(parts), minlength=200)
        for domain in (slice(0, 100), slice(100, 200)):
            for label in range(5):
                assert np.ptp(used[domain][labels[domain] == label]) <= 1


def test_domain_needs_no_labels_unless_classes_are_drawn():
    assert sizes(Domain().split(None, 0, DOMAINS)) == [200] * 3
    with pytest.raises(DataError, match=r"classes_beta needs labels"):
        Domain(classes_beta=0.5).split(None, 0, DOMAINS)


def test_domain_number_of_clients_is_given_by_the_domains():
    labels = np.zeros(600, dtype=np.int64)
    assert len(partition(labels, "domain", domains=DOMAINS)) == 3
    assert len(Domain(clients=6, per_domain=2).split(labels, 0, DOMAINS)) == 6
    with pytest.raises(DataError, match=r"partition\.clients=4, but 3 domains × partition\.per_domain=2 = 6"):
        Domain(clients=4, per_domain=2).split(labels, 0, DOMAINS)


def test_domain_errors_carry_the_numbers():
    with pytest.raises(DataError, match=r"needs the domain .* partition\.scheme=iid"):
        partition(BALANCED, "domain")
    with pytest.raises(DataError, match="600 images are too few for 900 clients"):
        Domain(per_domain=300).split(None, 0, DOMAINS)
    with pytest.raises(DataError, match=r"domain of 100 images .* partition\.per_domain=150"):
        Domain(per_domain=150, equal=False).split(None, 0, DOMAINS)
    with pytest.raises(DataError, match="changes nothing"):
        Domain(equal=False, classes_beta=0.5).split(np.zeros(600, dtype=np.int64), 0, DOMAINS)


# Earth mover's distance


def test_earth_movers_distance_by_hand():
    labels = np.array([0, 0, 0, 1])
    # Client 0 (3 images) has (1, 0), client 1 has (0, 1), all have (¾, ¼): ¾·¼ + ¼·¾ = 3/8.
    assert earth_movers_distance(labels, [np.array([0, 1, 2]), np.array([3])]) == pytest.approx(3 / 8)
    assert earth_movers_distance(labels, [np.arange(4)]) == 0
    # An empty client counts for nothing.
    assert earth_movers_distance(labels, [np.arange(4), np.array([], dtype=np.int64)]) == 0


def test_earth_movers_distance_is_the_cheapest_transport():
    from scipy.optimize import linprog

    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, size=200)
    parts = np.array_split(np.argsort(labels + rng.normal(size=200)), 3)
    whole, total = np.bincount(labels, minlength=4) / 200, 0.0
    for part in parts:
        own = np.bincount(labels[part], minlength=4) / len(part)
        leave = np.kron(np.eye(4), np.ones(4))
        arrive = np.kron(np.ones(4), np.eye(4))
        plan = linprog(
            (1 - np.eye(4)).ravel(), A_eq=np.vstack([leave, arrive]), b_eq=np.concatenate([own, whole])
        )
        total += plan.fun * len(part) / 200
    assert earth_movers_distance(labels, parts) == pytest.approx(total)


def test_earth_movers_distance_of_exclusive_classes():
    """One class of ten a client: 1 − 1/10 each."""
    assert earth_movers_distance(BALANCED, partition(BALANCED, "one-class", clients=10)) == pytest.approx(0.9)
    with pytest.raises(DataError, match="undefined"):
        earth_movers_distance(BALANCED, [np.array([], dtype=np.int64)])
