"""Client-level differential privacy: bounded updates, noise of the right size, nothing else."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedssl
from fedssl.aggregation.fedavg import FedAvg
from fedssl.aggregation.l_dawa import LDawa
from fedssl.privacy.fold import NoisyFold
from fedssl.privacy.layout import Layout
from fedssl.privacy.options import PrivacyConfig
from fedssl.privacy.stream import Stream, derive_key
from fedssl.privacy.terms import Terms
from fedssl.privacy.update import bounded_update, slack
from fedssl.state import State, Upload
from tests.small import SMALL, digest, small_run

KEY = bytes(range(32))
DP = {"privacy.mode": "client", "privacy.noise": 1.0}


def state(seed: int, size: int = 50) -> State:
    rng = torch.Generator().manual_seed(seed)
    return {
        "conv": torch.randn(size, generator=rng),
        "norm.running_mean": torch.randn(4, generator=rng),
        "norm.running_var": torch.rand(4, generator=rng) + 0.5,
        "norm.num_batches_tracked": torch.tensor(seed),
    }


STATISTICS = frozenset({"norm.running_mean", "norm.running_var"})


def terms(clients: int = 10, per_round: int = 5, **options: object) -> Terms:
    privacy = PrivacyConfig(**{"mode": "client", "noise": 1.0, "clip": 1.0, **options})
    return Terms(privacy, Layout.of(state(0), STATISTICS), clients, per_round)


def fold_of(agreed: Terms, previous: State, updates: list[np.ndarray], key: bytes = KEY) -> NoisyFold:
    rule = agreed.rule_at(FedAvg(name="fedavg"), 1)
    fold = NoisyFold(agreed, previous, agreed.privacy.clip, rule, key)
    for client, update in enumerate(updates):
        fold.add(Upload(client, agreed.layout.unflatten(update), 1))
    return fold


# --- clipping ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [0.1, 1.0, 1000.0])
def test_updates_are_clipped_to_the_clipping_norm(clip: float) -> None:
    agreed, previous = terms(clip=clip), state(0)
    update, within = bounded_update(
        agreed, FedAvg(statistics="pooled"), previous, Upload(0, state(1), 7), clip
    )
    parameters = (state(1)["conv"] - previous["conv"]).double().numpy()
    assert within == (clip == 1000.0)
    fold = fold_of(agreed, previous, [update])
    added = fold.grid.decode(fold.total.tensors)
    assert np.linalg.norm(added) <= clip
    if within:
        np.testing.assert_allclose(added[:50], parameters, atol=1e-9)
    else:  # shortened, not turned
        assert np.linalg.norm(added) == pytest.approx(clip, rel=1e-6)
        assert np.dot(added, update) == pytest.approx(clip * np.linalg.norm(update), rel=1e-6)


def test_the_server_clips_unclipped_updates() -> None:
    agreed = terms()
    fold = fold_of(agreed, state(0), [np.full(58, 1000.0)])
    assert np.linalg.norm(fold.grid.decode(fold.total.tensors)) <= 1.0
    with pytest.raises(ValueError, match="a number of nan"):
        fold_of(agreed, state(0), [np.full(58, math.nan)])


def test_rounding_cannot_make_an_update_longer() -> None:
    agreed = terms(bits=32, secure=True)
    grid, rng = agreed.grid(1.0), np.random.default_rng(0)
    for _ in range(50):
        update = rng.normal(size=58)
        update *= (1 - slack(grid.step, 58)) / np.linalg.norm(update)
        assert np.linalg.norm(grid.integers(update).astype(np.float64)) * grid.step <= 1.0


def test_clients_have_equal_weight_and_the_mean_uses_their_expected_number() -> None:
    agreed, previous = terms(per_round=5), state(0)
    updates = [np.zeros(58), np.zeros(58)]
    updates[0][3], updates[1][4] = 0.5, -0.25
    fold = fold_of(agreed, previous, updates)
    fold.missing_noise = 0.0  # to see the mean alone
    new = fold.finish()
    expected = previous["conv"].clone()
    expected[3] += 0.5 / 5
    expected[4] -= 0.25 / 5
    torch.testing.assert_close(new["conv"], expected, rtol=0, atol=1e-7)
    assert new["norm.num_batches_tracked"] == previous["norm.num_batches_tracked"]  # a count of batches


def test_without_noise_statistics_are_those_of_all_images_together() -> None:
    """Two clients with means ±1 and variance 1: together variance 2, which a mean of variances misses."""
    agreed, previous = terms(clients=2, per_round=2, clip=100.0), state(0)
    previous |= {"norm.running_mean": torch.zeros(4), "norm.running_var": torch.ones(4)}
    rule, updates = agreed.rule_at(FedAvg(), 1), []
    for client, mean in enumerate((1.0, -1.0)):
        trained = {**previous, "norm.running_mean": torch.full((4,), mean)}
        updates.append(bounded_update(agreed, rule, previous, Upload(client, trained, 9), 100.0)[0])
    fold = fold_of(agreed, previous, updates)
    fold.missing_noise = 0.0
    new = fold.finish()
    torch.testing.assert_close(new["norm.running_mean"], torch.zeros(4), rtol=0, atol=1e-6)
    torch.testing.assert_close(new["norm.running_var"], torch.full((4,), 2.0), rtol=0, atol=1e-6)


def test_noise_does_not_make_a_variance_vanish() -> None:
    agreed, previous = terms(noise=100.0), state(0)
    new = fold_of(agreed, previous, []).finish()
    assert (new["norm.running_var"] >= 0.0099 * previous["norm.running_var"]).all()
    assert (new["norm.running_var"] < 0.011 * previous["norm.running_var"]).any()


def test_l_dawa_scales_before_it_is_clipped() -> None:
    """Without clipping and noise it is the rule itself: w + Σ(δ_k·w_k − w)/K = Σ δ_k·w_k/K."""
    agreed, previous = terms(clients=3, per_round=3, clip=1e4), state(0)
    rule = LDawa(name="l-dawa", client_side=True)
    uploads = [Upload(client, state(client + 1), 5 + client) for client in range(3)]
    scaled = agreed.rule_at(rule, 1)
    updates = [bounded_update(agreed, scaled, previous, upload, 1e4)[0] for upload in uploads]
    fold = fold_of(agreed, previous, updates)
    fold.rule, fold.missing_noise = scaled, 0.0
    plain = LDawa(name="l-dawa")(previous, [replace(each, num_samples=1) for each in uploads], STATISTICS)
    torch.testing.assert_close(fold.finish()["conv"], plain["conv"], rtol=0, atol=1e-5)


# --- noise ------------------------------------------------------------------------------------------


def kolmogorov(values: np.ndarray) -> float:
    """√n times the largest distance from the normal distribution; beyond 1.95 in one of 1,000 samples."""
    from scipy.stats import kstest

    return float(kstest(values, "norm").statistic * math.sqrt(len(values)))


def test_a_stream_is_normal() -> None:
    drawn = Stream(KEY).normal(100_000)
    assert kolmogorov(drawn) < 1.95
    assert np.corrcoef(drawn[:50_000], drawn[50_000:])[0, 1] == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize(("clip", "noise", "per_round"), [(1.0, 1.0, 5), (0.3, 2.5, 10)])
def test_noise_has_the_right_size(clip: float, noise: float, per_round: int) -> None:
    """Standard deviation z·C on the sum, z·C/(q·N) on the mean."""
    previous = {"w": torch.zeros(40_000)}
    privacy = PrivacyConfig(mode="client", noise=noise, clip=clip)
    agreed = Terms(privacy, Layout.of(previous, frozenset()), 100, per_round)
    fold = NoisyFold(agreed, previous, clip, FedAvg(), KEY)
    drawn = fold.finish()["w"].double().numpy() / (noise * clip / per_round)
    assert drawn.std() == pytest.approx(1, rel=0.02)
    assert kolmogorov(drawn) < 1.95


def test_noise_differs_between_rounds_and_secrets() -> None:
    keys = [derive_key(KEY, round, "noise", "server") for round in (1, 2)]
    first, second = (Stream(key).normal(10_000) for key in keys)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    other = Stream(derive_key(bytes(32), 1, "noise", "server")).normal(10_000)
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.05


# --- adaptive clipping ------------------------------------------------------------------------------


def test_the_cost_of_adaptive_clipping_is_accounted_for() -> None:
    """Both noisy sums together are as private as the one without adaptation (Andrew et al., Theorem 1)."""
    agreed = terms(clients=1000, per_round=100, quantile=0.5)
    assert agreed.quantile_noise == 5.0
    assert agreed.update_noise > 1.0
    together = (agreed.update_noise**-2 + (2 * agreed.quantile_noise) ** -2) ** -0.5
    assert together == pytest.approx(agreed.release.noise) == 1.0
    small = terms(clients=10, per_round=5, quantile=0.5)
    assert small.update_noise < 1.16


def test_the_clipping_norm_finds_the_quantile() -> None:
    agreed = terms(clients=100, per_round=100, quantile=0.7)
    norms, clip = np.linspace(1, 2, 100), 0.1
    for _ in range(200):
        clip = agreed.next_clip(clip, float(np.where(norms <= clip, 0.5, -0.5).sum()))
    assert (norms <= clip).mean() == pytest.approx(0.7, abs=0.05)


# --- whole runs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> fedssl.Run:
    keys = {"participation.per_round": 0.6, "checkpoint.every": 1, "checkpoint.keep": 0}
    return small_run(tmp_path_factory.mktemp("private") / "run", **DP, **keys)


def test_every_line_has_epsilon_but_no_individual_values(private: fedssl.Run) -> None:
    spent = [line["epsilon"] for line in private.metrics]
    assert spent == sorted(spent)
    assert spent[0] > 0
    for line in private.metrics:
        assert not {"loss", "divergence", "drift", "angle"} & line.keys()
        assert line["views"] == 0
        assert all(set(client) == {"client", "seconds"} for client in line["clients"])


def test_epsilon_is_that_of_the_rounds(private: fedssl.Run) -> None:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=1e-3)
    event = dp_accounting.PoissonSampledDpEvent(3 / 5, dp_accounting.GaussianDpEvent(1.0))
    for line in private.metrics:
        accountant.compose(event)
        assert line["epsilon"] == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-4)


def test_a_resumed_run_spends_the_same_and_has_the_same_bits(private: fedssl.Run, tmp_path: Path) -> None:
    shutil.copytree(private.path, tmp_path / "run")
    for name in ("result.json", "encoder.safetensors", "checkpoints/round-000003.safetensors"):
        (tmp_path / "run" / name).unlink()
    again = fedssl.resume(tmp_path / "run", quiet=True)
    assert digest(again) == digest(private)
    assert [line["epsilon"] for line in again.metrics] == [line["epsilon"] for line in private.metrics]
    drawn = [
        [[client["client"] for client in line["clients"]] for line in run.metrics] for run in (again, private)
    ]
    assert drawn[0] == drawn[1]


@pytest.mark.usefixtures("warm_workers")
def test_workers_give_the_same_bits(private: fedssl.Run, tmp_path: Path) -> None:
    keys = {"participation.per_round": 0.6, "engine.workers": 2}
    assert digest(small_run(tmp_path / "run", **DP, **keys)) == digest(private)


def test_clients_are_drawn_independently(tmp_path: Path) -> None:
    """Poisson sampling: numbers per round are binomial, and clients are sampled independently."""
    from fedssl.config import load
    from fedssl.privacy.guard import SumGuard

    guard = SumGuard(load(SMALL, DP), terms(clients=40, per_round=10), KEY)
    there = np.zeros((2000, 40))
    for round in range(2000):
        there[round, guard.sample(round)] = 1
    sizes = there.sum(axis=1)
    assert sizes.mean() == pytest.approx(10, abs=4 * math.sqrt(7.5 / 2000))
    assert sizes.var() == pytest.approx(7.5, rel=0.15)
    assert there.mean(axis=0).std() == pytest.approx(math.sqrt(0.1875 / 2000), rel=0.5)


def test_a_round_without_clients_continues(tmp_path: Path) -> None:
    keys = {"participation.per_round": 1, "seed": 1, "rounds": 6, "method.private_norm": True}
    run = small_run(tmp_path / "run", **DP, **keys)
    sizes = [len(line["clients"]) for line in run.metrics]
    assert len(sizes) == 6
    assert 0 in sizes  # with probability 0.89; the seed is one of those


def test_the_run_stops_before_the_budget_is_spent(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", **DP, **{"privacy.epsilon": 7.0, "probe.protocol": "none"})
    assert run.result["rounds"] == len(run.metrics) == 2
    assert run.metrics[-1]["epsilon"] <= 7.0
    assert "privacy.epsilon is 7" in run.result["stopped"]
    again = fedssl.resume(run.path, quiet=True)
    assert len(again.metrics) == 2


def test_a_run_without_budget_does_not_continue_when_resumed(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", **DP, **{"privacy.epsilon": 7.0})
    (run.path / "result.json").unlink()
    assert len(fedssl.resume(run.path, quiet=True).metrics) == 2


def test_a_stored_secret_makes_noise_irreproducible_for_others(tmp_path: Path) -> None:
    keys = {**DP, "privacy.random": "secret", "rounds": 1}
    first, second = (small_run(tmp_path / name, **keys) for name in ("first", "second"))
    assert digest(first) != digest(second)
    file = first.path / "checkpoints" / "privacy-secret"
    assert len(file.read_bytes()) == 32
    assert file.stat().st_mode & 0o077 == 0
    assert "secret" in json.dumps(first.config.to_dict()["privacy"])


def test_disabled_privacy_changes_nothing(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", rounds=1)
    assert "epsilon" not in run.metrics[0]
    explicit = small_run(tmp_path / "explicit", rounds=1, **{"privacy.mode": "none", "privacy.secure": False})
    assert digest(run) == digest(explicit)


def test_more_noise_moves_the_model_further(tmp_path: Path) -> None:
    """A large noise changes the model, so it is really added."""
    quiet, loud = (
        small_run(tmp_path / str(noise), rounds=1, **{**DP, "privacy.noise": noise}) for noise in (0.5, 50.0)
    )
    a, b = (load_file(run.path / "encoder.safetensors")["conv1.weight"] for run in (quiet, loud))
    assert b.std() > 5 * a.std()
