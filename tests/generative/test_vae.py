"""The β-VAE against torch.distributions."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from fedssl.config import load
from fedssl.engines.network import build_network
from fedssl.objectives.generative.losses import draw_pairs
from fedssl.objectives.generative.vae import divergence, reconstruction
from tests.generative.small import KINDS


def test_the_divergence_is_that_of_normal_distributions() -> None:
    torch.manual_seed(0)
    mean, log_variance = torch.randn(5, 3), torch.randn(5, 3)
    expected = kl_divergence(Normal(mean, (0.5 * log_variance).exp()), Normal(0.0, 1.0)).sum(1).mean()
    torch.testing.assert_close(divergence(mean, log_variance), expected)


def test_reconstruction_is_the_mean_error_of_pixels_from_minus_one_to_one() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(4, 1, 3, 3), torch.rand(4, 1, 3, 3)
    torch.testing.assert_close(reconstruction(2 * y, 2 * x, 2.0), torch.nn.functional.mse_loss(y, x))


def test_every_parameter_learns_and_the_weights_weigh() -> None:
    images = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))

    def loss(**keys: float) -> torch.Tensor:
        keys = {"channel_noise": 0.0, **keys}
        config = load(KINDS["vae"], {f"objective.{key}": value for key, value in keys.items()})
        model = build_network(config, (8, 8), 1, 0).model
        value = config.objective.loss(model, [images], None, torch.Generator().manual_seed(0))
        if len(keys) == 1:
            value.backward()
            assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
        return value.detach()

    whole, plain = loss(), loss(beta=0.0, regularizer=0.0)
    more_beta, more_gamma = loss(beta=0.02), loss(regularizer=0.002)
    assert float(plain) < float(whole)
    # Linear in both weights: β is 0.01 and λ is 0.001 by default.
    torch.testing.assert_close(
        whole - plain, (more_beta - whole) + (more_gamma - whole), rtol=1e-3, atol=1e-5
    )
    # β is per latent and value of an image: 4 latents, 64 values.
    config = load(KINDS["vae"], {"objective.channel_noise": 0.0, "objective.regularizer": 0.0})
    model = build_network(config, (8, 8), 1, 0).model
    apart = torch.zeros(())
    fakes = config.objective.generate(model, draw_pairs(6, 4, 0, torch.Generator().manual_seed(0)))
    for prefix in ("", "style_"):
        features = model.part(f"{prefix}encoder")(torch.cat((images, fakes)))[:6]
        mean, log_variance = model.part(f"{prefix}posterior")(features).chunk(2, dim=1)
        apart = apart + divergence(mean, log_variance)
    torch.testing.assert_close(more_beta - whole, (0.01 * 4 / 64 * apart).detach(), rtol=1e-3, atol=1e-6)


def test_it_learns(tmp_path: pytest.TempPathFactory) -> None:
    from tests.generative.small import run_of

    run = run_of("vae", tmp_path / "a", rounds=4, **{"train.epochs": 4, "train.lr": 0.003})
    assert run.metrics[-1]["loss"] < 0.8 * run.metrics[0]["loss"]
