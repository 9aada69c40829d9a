"""Losses by hand, and latents in pairs."""

from __future__ import annotations

import math

import pytest
import torch

from fedssl.objectives.generative.losses import (
    discriminator_adversarial,
    draw_latents,
    draw_pairs,
    generator_adversarial,
    same_content,
    same_style,
)


def test_hinge_by_hand() -> None:
    real, fake = torch.tensor([2.0, 0.5]), torch.tensor([-3.0, 1.0])
    # (0 + 0.5) / 2 + (0 + 2) / 2
    assert float(discriminator_adversarial(real, fake, "hinge")) == pytest.approx(1.25)
    assert float(generator_adversarial(fake, "hinge")) == pytest.approx(1.0)


def test_log_loss_is_equation_9_with_probabilities() -> None:
    real, fake = torch.tensor([2.0, 0.5]), torch.tensor([-3.0, 1.0])
    p, q = [1 / (1 + math.exp(-v)) for v in real.tolist()], [1 / (1 + math.exp(-v)) for v in fake.tolist()]
    value = sum(map(math.log, p)) / 2 + sum(math.log(1 - v) for v in q) / 2
    assert float(discriminator_adversarial(real, fake, "log")) == pytest.approx(-value)
    assert float(generator_adversarial(fake, "log")) == pytest.approx(-sum(map(math.log, q)) / 2)


@pytest.mark.parametrize("count", [8, 7, 2])
def test_every_content_and_every_style_occurs_twice(count: int) -> None:
    pairs = draw_pairs(count, 3, 5, torch.Generator().manual_seed(0))
    assert len(pairs) == max(4, count + count % 2)
    a, b = same_content(torch.cat((pairs.content, pairs.style, pairs.labels[:, None].float()), 1))
    assert torch.equal(a[:, :3], b[:, :3])
    assert torch.equal(a[:, 6], b[:, 6])  # the label is content
    assert not torch.isclose(a[:, 3:6], b[:, 3:6]).any()
    a, b = same_style(torch.cat((pairs.content, pairs.style), 1))
    assert torch.equal(a[:, 3:], b[:, 3:])
    assert not torch.isclose(a[:, :3], b[:, :3]).any()


def test_latents_are_standard_normal_and_labels_uniform() -> None:
    latents = draw_latents(4000, 2, 4, torch.Generator().manual_seed(0))
    both = torch.cat((latents.content, latents.style), 1)
    assert both.mean(0).abs().max() < 0.06
    assert (both.std(0) - 1).abs().max() < 0.05
    assert latents.labels.bincount().min() > 900
    assert draw_latents(3, 2, 0, torch.Generator()).labels is None
