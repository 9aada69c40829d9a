"""Gradient inversion: what observers see, and that clear uploads reveal more than noisy ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fedssl
from fedssl.audit.inversion import _batch as batch_of
from fedssl.audit.inversion import _receive as receive
from fedssl.audit.inversion import (
    angles,
    audit_inversion,
    correlations,
    gradient_of,
    matched_views,
    observations,
    roughness,
)
from tests.audit.test_canaries import loaded
from tests.small import small_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> fedssl.Run:
    """A wide network, whose gradients reveal more about pixels than those of a narrow one."""
    keys = {"objective": "supervised", "rounds": 1, "data.size": 8, "model.norm": "group", "model.width": 32}
    return small_run(tmp_path_factory.mktemp("inversion") / "run", **keys)


def test_the_gradient_is_that_of_a_step_of_the_client(tmp_path: Path) -> None:
    """Plain gradient descent: received − trained = lr · gradient."""
    keys = {"rounds": 1, "data.size": 8, "model.norm": "group", "train.momentum": 0.0}
    live = loaded(small_run(tmp_path / "run", **keys))
    client = receive(live, 0)
    batch = batch_of(client, 4)
    gradient = gradient_of(client, batch, seed=0)
    parameters = client.objective.trained(client.model)
    before = torch.cat([parameter.detach().reshape(-1).clone() for parameter in parameters])
    client.objective.loss(client.model, batch.views, batch.labels, batch.rng).backward()
    torch.optim.SGD(parameters, lr=0.1).step()
    after = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    assert torch.allclose((before - after) / 0.1, gradient.detach(), atol=1e-5)


def test_observers_see_the_expected_gradients(private: fedssl.Run) -> None:
    rng = torch.Generator().manual_seed(0)
    gradients = [torch.randn(50_000, generator=rng) for _ in range(3)]
    upload, summed, noisy = observations(gradients, 0.1, loaded(private))
    assert torch.equal(upload.gradient, gradients[0])
    assert torch.allclose(summed.gradient, gradients[0] + gradients[1] + gradients[2], atol=1e-5)
    # The run: noise 1, clip 1. The gradient has norm 224, the update 22, so that it is shortened to 1.
    bounded = gradients[0] / gradients[0].norm()
    added = noisy.gradient - bounded
    assert float(added.std()) == pytest.approx(1.0, rel=0.02)
    assert float(added.mean()) == pytest.approx(0.0, abs=0.02)
    assert noisy.about == {"noise": 1.0, "clip": 1.0}


def test_a_clear_upload_reveals_more_than_a_noisy_one(run: fedssl.Run) -> None:
    found = audit_inversion(loaded(run), images=1, steps=60)
    similarity = {each["name"]: each["similarity"] for each in found.numbers["observers"]}
    assert similarity["upload"] > similarity["noise"] + 0.1
    assert set(found.pixels) == {"truth", "upload", "sum", "noise"}
    assert all(pixels.shape == (2, 8, 8, 1) for pixels in found.pixels.values())


def test_no_client_with_as_many_images(run: fedssl.Run) -> None:
    found = audit_inversion(loaded(run), images=1000, steps=1)
    assert "No client on this machine has 1000 images" in found.numbers["why_not"]


def test_the_model_is_restored(run: fedssl.Run) -> None:
    live = loaded(run)
    before = {name: value.clone() for name, value in live.live.runner.model.state_dict().items()}
    audit_inversion(live, images=2, steps=2)
    after = live.live.runner.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_angles_are_means_over_tensors() -> None:
    first, second = torch.tensor([1.0, 0.0, 3.0]), torch.tensor([0.0, 2.0, 5.0])
    assert float(angles(first, second, [2, 1])) == pytest.approx(0.5)  # 90° and 0°


def test_similarity_is_the_correlation_of_pixels() -> None:
    rng = torch.Generator().manual_seed(0)
    true, other = (torch.rand(2, 1, 4, 4, generator=rng) for _ in range(2))
    expected = np.corrcoef(true[0].flatten().numpy(), other[1].flatten().numpy())[0, 1]
    assert float(correlations(true, other)[0, 1]) == pytest.approx(expected, abs=1e-5)
    similarity, matched = matched_views([true], [true.flip(0) * 2 + 1])
    assert similarity == pytest.approx(1)
    assert torch.allclose(matched, true * 2 + 1)  # in the order of the true views


def test_roughness_counts_steps_between_neighbors() -> None:
    assert float(roughness(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]]))) == pytest.approx(1.0)
