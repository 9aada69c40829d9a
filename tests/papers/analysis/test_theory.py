"""The theory of Dec-SSL as code: solvers against independent ones, and the claims of §3.2 and §4.2."""

import numpy as np
import pytest
import torch

from fedssl.cli import main
from fedssl.errors import ConfigError, DataError
from fedssl.papers.analysis.max_margin import max_margin
from fedssl.papers.analysis.theory import (
    representability,
    save_picture,
    sl_features,
    source_data,
    ssl_features,
    study,
    table,
)

# --- the classifier of least norm -----------------------------------------------------------------


def test_two_points_by_hand():
    """x = ±1 on a line: w_0 − w_1 ≥ 1 at least norm is (½, −½), with multipliers of ¼."""
    found = max_margin(np.array([[1.0], [-1.0]]), np.array([0, 1]), 2)
    np.testing.assert_allclose(found.weights, [[0.5], [-0.5]], atol=1e-12)
    np.testing.assert_allclose(found.multipliers, [[0, 0.25], [0.25, 0]], atol=1e-12)


def test_a_class_without_samples_is_a_rival():
    """One sample x = 2 of class 0 of three: w = (⅓, −⅙, −⅙), since both rivals must stay 1 below."""
    found = max_margin(np.array([[2.0]]), np.array([0]), 3)
    np.testing.assert_allclose(found.weights[:, 0], [1 / 3, -1 / 6, -1 / 6], atol=1e-12)


@pytest.mark.parametrize(("samples", "d", "classes"), [(12, 20, 3), (60, 8, 4), (90, 30, 6)])
def test_the_kkt_conditions_hold(samples, d, classes):
    x, y = separable(samples, d, classes)
    found = max_margin(x, y, classes)
    assert (found.multipliers >= 0).all()
    weights = np.zeros((classes, d))
    for sample in range(samples):  # stationarity: w = Σ α (e_y − e_c) xᵀ
        for rival in range(classes):
            alpha = found.multipliers[sample, rival]
            weights[y[sample]] += alpha * x[sample]
            weights[rival] -= alpha * x[sample]
    np.testing.assert_allclose(found.weights, weights, atol=1e-9)
    for sample in range(samples):
        for rival in range(classes):
            if rival == y[sample]:
                assert found.multipliers[sample, rival] == 0
                continue
            margin = (weights[y[sample]] - weights[rival]) @ x[sample]
            assert margin >= 1 - 1e-8  # feasible
            assert abs(found.multipliers[sample, rival] * (margin - 1)) < 1e-8  # complementary
    assert np.square(weights).sum() == pytest.approx(found.multipliers.sum(), rel=1e-8)  # no gap


def test_it_is_the_hard_margin_limit_of_scikit_learn():
    """Crammer and Singer's machine with a large C, in an independent implementation."""
    from sklearn.svm import LinearSVC

    x, y = separable(40, 15, 3)
    machine = LinearSVC(
        multi_class="crammer_singer", C=1e4, fit_intercept=False, tol=1e-10, max_iter=200_000, random_state=0
    )
    np.testing.assert_allclose(max_margin(x, y, 3).weights, machine.fit(x, y).coef_, atol=1e-4)


def test_inseparable_classes_are_an_error():
    with pytest.raises(DataError, match=r"2 samples in 1 dimensions.*separated"):
        max_margin(np.array([[1.0], [2.0]]), np.array([0, 1]), 2)


def separable(samples, d, classes):
    rng = np.random.default_rng(samples)
    planes = rng.standard_normal((classes, d))
    x = rng.standard_normal((20 * samples, d))
    scores = np.sort(x @ planes.T, axis=1)
    x = x[scores[:, -1] - scores[:, -2] > 0.3][:samples]
    return x, np.argmax(x @ planes.T, axis=1)


# --- features -------------------------------------------------------------------------------------


def test_ssl_features_minimize_the_objective():
    """Eckart–Young: what is left of ‖X − wᵀw‖² are the discarded eigenvalues; and the gradient is 0."""
    a = np.random.default_rng(0).standard_normal((30, 12))
    moments = a.T @ a / 30
    w = ssl_features(moments, 5)
    left = np.square(moments - w.T @ w).sum()
    assert left == pytest.approx(np.square(np.linalg.eigvalsh(moments)[:7]).sum())
    rows = torch.from_numpy(w).requires_grad_()
    x = torch.from_numpy(moments)
    loss = -torch.trace(rows @ x @ rows.T) + (rows.T @ rows).square().sum() / 2  # (E.1) in expectation
    loss.backward()
    assert float(rows.grad.abs().max()) < 1e-10


def test_supervised_features_are_the_cheapest_factor_of_the_classifier():
    x, y = separable(30, 12, 3)
    product, u = max_margin(x, y, 3).weights, sl_features(x, y, 3)
    v = product @ np.linalg.pinv(u)
    np.testing.assert_allclose(v @ u, product, atol=1e-10)
    cost = np.square(u.T @ u).sum() + np.square(v.T @ v).sum()
    assert cost == pytest.approx(2 * np.square(product).sum())
    rng = np.random.default_rng(0)
    for _ in range(20):  # any other way to write the same product costs more
        change = np.eye(len(u)) + 0.1 * rng.standard_normal((len(u), len(u)))
        other_u, other_v = change @ u, v @ np.linalg.inv(change)
        assert np.square(other_u.T @ other_u).sum() + np.square(other_v.T @ other_v).sum() > cost


def test_representability_is_the_length_of_a_projection():
    features = np.random.default_rng(1).standard_normal((3, 7))
    features = np.vstack([features, features[0] + features[1]])  # spans no more
    r = representability(features)
    for i, e in enumerate(np.eye(7)):
        solution = np.linalg.lstsq(features.T, e, rcond=None)[0]
        assert r[i] == pytest.approx(np.square(features.T @ solution).sum())
    assert r.sum() == pytest.approx(3)  # the dimension of the span
    np.testing.assert_allclose(representability(np.eye(7)[:2]), [1, 1, 0, 0, 0, 0, 0])


# --- the data and the claims ----------------------------------------------------------------------


def test_a_source_is_skewed_as_the_paper_says():
    d, sources = 1024, 3  # τ = 4, μ = ¼
    x, y = source_data(1, sources, d, np.random.default_rng(0))
    counts = np.bincount(y, minlength=6)
    assert counts.tolist() == [1, 0, d, d, 1, 0]  # rare: 4 // 3 = 1 of each odd class, none of even ones
    assert 2 * counts[0] <= d**0.2
    own, other = x[y == 2], x[y == 3]
    np.testing.assert_allclose([own[:, 1].mean(), other[:, 1].mean()], [1, -1], atol=0.04)
    for rows in (own, other):
        for direction in (0, 2):  # q·τ with q in {0, 1}, and noise: −τ/2 ± τ/2
            assert rows[:, direction].mean() == pytest.approx(-2, abs=0.3)
            assert rows[:, direction].std() == pytest.approx(np.sqrt(4 + 1 / 16), abs=0.1)
        assert rows[:, 3:].std() == pytest.approx(0.25, abs=0.001)


@pytest.fixture(scope="module")
def studies():
    return [study(d, seed=1) for d in (60, 120, 240)]


def test_ssl_is_uniform_and_sl_peaks_at_its_own_direction(studies):
    at = studies[-1]
    assert at.local_ssl.min() > 0.9
    assert at.global_ssl.min() > 0.98
    assert np.ptp(at.global_ssl) < 0.02
    for source in range(at.sources):
        others = np.delete(at.local_sl[source], source)
        assert at.local_sl[source, source] > 0.65
        assert others.max() < 0.2
        # Proposition 4.1: about 1 along e_k, little along the others.
        assert at.sl_correlation[source, source] > 0.8
        assert np.delete(at.sl_correlation[source], source).max() < 0.15


def test_the_bounds_of_the_theorem_close_as_d_grows(studies):
    for name in ("ssl_missing", "global_missing", "sl_elsewhere"):
        values = [getattr(each, name) for each in studies]
        assert values == sorted(values, reverse=True), name
    assert studies[-1].sl_peak > studies[0].sl_peak
    for each in studies:  # one constant for all d: O(d^{−4/5})
        assert each.ssl_missing < 3 * each.d**-0.8
        assert each.global_missing < each.d**-0.8


def test_the_result_holds_for_more_sources():
    at = study(120, sources=5)
    assert at.local_ssl.min() > 0.85
    assert (at.local_sl.argmax(axis=1) == np.arange(5)).all()


def test_it_is_seeded():
    one, again, other = study(40), study(40), study(40, seed=1)
    np.testing.assert_array_equal(one.local_sl, again.local_sl)
    assert (one.local_sl != other.local_sl).any()


def test_picture_and_table(tmp_path, studies):
    save_picture(tmp_path / "folder" / "theory.png", studies)
    assert (tmp_path / "folder" / "theory.png").read_bytes()[:4] == b"\x89PNG"
    lines = table(studies).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["60", "120", "240"]
    assert f"{studies[0].sl_peak:.3f}" in lines[1]


def test_by_command(tmp_path, capsys):
    out = tmp_path / "theory.png"
    assert main(["theory", "-o", str(out), "--dimensions", "40", "--sources", "2"]) == 0
    assert out.exists()
    assert "SL: r_k" in capsys.readouterr().out
    assert main(["theory", "-o", str(out), "--sources", "1"]) == 2
    assert "1 sources in 100 dimensions" in capsys.readouterr().err


def test_too_few_dimensions_are_refused():
    with pytest.raises(ConfigError, match="3 sources in 20 dimensions"):
        study(20)
