"""FedSC: the loss by hand and against the loss of all images together, and the uploaded moments."""

from __future__ import annotations

import pytest
import torch
from tests.small import digest, small_run

from fedssl.engines.checkpoint import load_checkpoint
from fedssl.errors import ConfigError
from fedssl.methods.fedsc import moments_of_others, spectral


def test_by_hand() -> None:
    """Two images with equal views, z = (2, 0) and (1, 1): z·z' is 4 and 2, z·z⁻ is 2; R̄₋ₖ = diag(1, 3)."""
    a = torch.tensor([[2.0, 0], [1, 1]])
    value = spectral(a, a.clone(), torch.diag(torch.tensor([1.0, 3.0])), 0.25)
    assert float(value) == pytest.approx(-2 * 3 + 0.25 * 4 + 2 * 0.75 * (4 + 4) / 2)


def test_with_its_share_as_alpha_the_gradient_is_that_of_all_images_together() -> None:
    """p·(α‖R‖² + 2(1−α)·tr(R R̄₋ₖ)) and ‖p·R + (1−p)·R̄₋ₖ‖² have the same gradient if α = p."""
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(30, 4, generator=rng, dtype=torch.double, requires_grad=True)
    theirs = torch.randn(90, 4, generator=rng, dtype=torch.double)
    others = theirs.T @ theirs / 90
    own = z.T @ z / 30
    (whole,) = torch.autograd.grad((0.25 * own + 0.75 * others).square().sum(), z, retain_graph=True)
    local = 0.25 * own.square().sum() + 2 * 0.75 * (own * others).sum()
    (part,) = torch.autograd.grad(0.25 * local, z)
    torch.testing.assert_close(part, whole)
    across = (spectral(z[:15], z[15:], others, 0.0) - spectral(z[:15], z[15:], 0 * others, 0.0)) / 2
    assert float(across.detach()) == pytest.approx(float((own * others).sum()), rel=1e-6)


def test_moments_of_others_by_hand() -> None:
    own, rest = torch.tensor([[4.0]]), torch.tensor([[8.0]])
    mean = 0.25 * own + 0.75 * rest
    assert moments_of_others(mean, own, 0.25).item() == 8
    assert moments_of_others(mean, own, 0.0).item() == moments_of_others(mean, own, 1.0).item() == 7


def test_uploaded_moments_are_those_of_scaled_projections(tmp_path) -> None:
    run = small_run(tmp_path / "run", method={"name": "fedsc", "length": 3.0})
    plain = small_run(tmp_path / "plain")
    for ours, theirs in zip(run.metrics, plain.metrics, strict=True):
        assert ours["bytes_up"] - theirs["bytes_up"] == 5 * 4 * 16 * 16
        assert not ours["failed"]
    server = load_checkpoint(run.path / "checkpoints" / "round-000003.safetensors", 3).server
    mean = server.model["moments.matrix"]
    assert float(mean.trace()) == pytest.approx(3.0, rel=1e-4)  # E‖z‖²
    assert torch.equal(mean, mean.T) or torch.allclose(mean, mean.T, atol=1e-6)
    assert server.values["images"] == sum(each["images"] for each in run.metrics[-1]["clients"])


def test_other_clients_matter_from_the_second_round_on(tmp_path) -> None:
    def losses(alpha: float) -> list[float]:
        run = small_run(tmp_path / f"{alpha}", rounds=2, method={"name": "fedsc", "alpha": alpha})
        return [line["loss"] for line in run.metrics]

    without, half = losses(1.0), losses(0.5)
    assert without[1] != half[1]
    assert half[0] < without[0]  # the own images repel half as much, and there are no others yet


@pytest.mark.usefixtures("warm_workers")
def test_workers_give_the_same_bits(tmp_path) -> None:
    keys = {"method": "fedsc", "rounds": 2, "participation.per_round": 3}
    two = small_run(tmp_path / "two", **keys, **{"engine.workers": 2})
    assert digest(small_run(tmp_path / "one", **keys)) == digest(two)


def test_another_objective_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"leave objective\.name"):
        small_run(tmp_path / "byol", objective="byol", method="fedsc")
