"""Spectral normalization divides by the largest singular value, with any stored vector."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from fedssl.objectives.generative.layers import EqualLinear, SpectralConv, SpectralEmbedding, SpectralLinear


@pytest.fixture(
    params=[lambda: SpectralConv(3, 8, 3), lambda: SpectralLinear(12, 5), lambda: SpectralEmbedding(7, 6)]
)
def layer(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    return request.param()


def test_the_largest_singular_value_is_one_in_evaluation(layer: nn.Module) -> None:
    largest = torch.linalg.svdvals(layer.eval().normalized_weight().flatten(1))[0]
    assert float(largest.detach()) == pytest.approx(1, abs=0.02)


def test_evaluation_does_not_depend_on_the_vector(layer: nn.Module) -> None:
    """The vector is private, so a global network is evaluated with its initial one."""
    other = copy.deepcopy(layer)
    other.u.copy_(torch.nn.functional.normalize(torch.randn(len(other.u)), dim=0))
    torch.testing.assert_close(
        layer.eval().normalized_weight(), other.eval().normalized_weight(), rtol=0.02, atol=0.02
    )


def test_only_training_updates_the_vector(layer: nn.Module) -> None:
    before = layer.u.clone()
    layer.eval().normalized_weight()
    assert torch.equal(layer.u, before)
    layer.train().normalized_weight()
    assert not torch.equal(layer.u, before)
    assert float(layer.u.norm()) == pytest.approx(1)


def test_training_converges_to_pytorchs() -> None:
    """PyTorch starts from the other vector, and is half an iteration ahead until both have converged."""
    torch.manual_seed(0)
    ours, theirs = SpectralLinear(6, 4), nn.Linear(6, 4)
    theirs.load_state_dict({"weight": ours.weight, "bias": ours.bias})
    spectral_norm(theirs, n_power_iterations=1)
    x = torch.randn(3, 6)
    for _ in range(3000):
        a, b = ours(x), theirs(x)
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    weights = ours.weight, theirs.parametrizations.weight.original
    grads = [torch.autograd.grad(out.square().sum(), w)[0] for out, w in zip((a, b), weights, strict=True)]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)


def test_equalized_layers_have_outputs_of_the_size_of_their_inputs() -> None:
    torch.manual_seed(0)
    layer = EqualLinear(256, 256)
    assert float(layer.weight.detach().std()) == pytest.approx(1, abs=0.02)
    x = torch.randn(500, 256)
    assert float(torch.relu(layer(x)).square().mean().detach()) == pytest.approx(1, abs=0.05)  # He's gain
