"""Networks of the right size, and normalization that depends on style and label."""

from __future__ import annotations

import pytest
import torch

from fedssl.errors import ConfigError
from fedssl.objectives.generative.canvas import Canvas
from fedssl.objectives.generative.networks import (
    Critic,
    FlatTrunk,
    Generator,
    LabelModulation,
    Modulation,
    Trunk,
    Vectorizer,
    build_projector,
    conditional_norm,
)


def millions(*modules: torch.nn.Module) -> float:
    return sum(p.numel() for module in modules for p in module.parameters()) / 1e6


def test_at_the_papers_size_networks_have_the_papers_numbers_of_parameters() -> None:
    generator = Generator(32, 1, 64, 128)
    assert millions(Trunk(32, 1, 64), Critic(64)) == pytest.approx(0.26, abs=0.005)
    assert millions(generator, Modulation(generator.norm_widths, 128, False)) == pytest.approx(0.47, abs=0.01)
    assert millions(Vectorizer(128)) == pytest.approx(0.13, abs=0.005)


def drawn(side: int, channels: int, **sizes: int) -> torch.Tensor:
    generator = Generator(side, channels, 8, 4, **sizes)
    modulation = Modulation(generator.norm_widths, 4, False)
    z = torch.randn(3, 4)
    return generator(z, conditional_norm(modulation.norms, modulation(z), []))


@pytest.mark.parametrize(
    ("side", "channels", "sizes"),
    [
        (8, 1, {}),
        (28, 1, {"growth": 2}),
        (28, 1, {"growth": 2, "patch": 2}),
        (32, 3, {"patch": 4}),
        (64, 3, {"growth": 2, "patch": 2}),
        (5, 1, {}),
    ],
)
def test_shapes(side: int, channels: int, sizes: dict[str, int]) -> None:
    torch.manual_seed(0)
    images = drawn(side, channels, **sizes)
    assert images.shape == (3, channels, side, side)
    assert float(images.detach().abs().max()) <= 1
    for kind in (Trunk, FlatTrunk):
        features = kind(side, channels, 8, blocks=1, **sizes)(images)
        assert features.shape == (3, 8)


def test_the_encoder_depends_on_every_pixel() -> None:
    torch.manual_seed(0)
    for patch in (1, 2):
        images = torch.randn(2, 1, 28, 28, requires_grad=True)
        Trunk(28, 1, 16, growth=2, blocks=1, patch=patch)(images).square().sum().backward()
        assert float((images.grad != 0).float().mean()) > 0.99


def test_sizes_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"objective\.patch=2 does not divide"):
        Trunk(27, 1, 8, patch=2)
    with pytest.raises(ConfigError, match=r"can only be halved to 33.*data\.size"):
        Generator(66, 1, 8, 4)


def test_conditional_normalization_is_batch_norm_with_each_images_own_gain_and_bias() -> None:
    torch.manual_seed(0)
    modulation, labels = Modulation([4, 6], 3, conditional=True), LabelModulation([4, 6], 5)
    style, label, x = torch.randn(8, 3), torch.randint(5, (8,)), torch.randn(8, 6, 4, 4)
    by_style, by_label = modulation(style), labels(label)
    ours = conditional_norm(modulation.norms, by_style, by_label)(1, x)
    standard = (x - x.mean((0, 2, 3), keepdim=True)) / (
        x.var((0, 2, 3), correction=0, keepdim=True) + 1e-5
    ).sqrt()
    for image in range(8):
        for channel in range(6):
            own, place = (by_style, channel) if channel < 3 else (by_label, channel - 3)
            gain, bias = own[1][image, :, place]
            torch.testing.assert_close(
                ours[image, channel], standard[image, channel] * (1 + gain) + bias, rtol=1e-4, atol=1e-5
            )


def test_style_and_label_have_half_of_the_channels_each() -> None:
    torch.manual_seed(0)
    modulation, labels = Modulation([6], 3, conditional=True), LabelModulation([6], 5)
    x, style = torch.randn(4, 6, 2, 2), torch.randn(4, 3)
    zeros, ones = torch.zeros(4, dtype=torch.int64), torch.ones(4, dtype=torch.int64)

    def out(style: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return conditional_norm(modulation.norms, modulation(style), labels(label))(0, x)

    changed = (out(style, zeros) != out(style + 1, zeros)).flatten(2).all(2)
    assert changed[0].tolist() == [True] * 3 + [False] * 3
    changed = (out(style, zeros) != out(style, ones)).flatten(2).all(2)
    assert changed[0].tolist() == [False] * 3 + [True] * 3


def test_the_projection_discriminator_follows_equation_5() -> None:
    torch.manual_seed(0)
    critic = Critic(4, classes=3).eval()
    features, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    table, weight = critic.labels.normalized_weight(), critic.linear.normalized_weight()
    for i, label in enumerate(labels):
        expected = table[label] @ features[i] + weight[0] @ features[i] + critic.linear.bias[0]
        torch.testing.assert_close(critic(features, labels)[i], expected)
    torch.testing.assert_close(critic(features), (features @ weight.T + critic.linear.bias)[:, 0])


def test_the_projector_is_two_normalized_layers() -> None:
    """A second implementation: divide by the largest singular value, standardize columns, twice."""
    from fedssl.models.options import ModelConfig

    torch.manual_seed(0)
    projector = build_projector(5, ModelConfig(projector_hidden=7, projector_out=4))
    x = torch.randn(30, 5)
    for _ in range(60):  # until power iteration has found the singular vectors
        ours = projector(x)
    weights = [value for value in projector.parameters() if value.ndim == 2]
    gain, bias = (value for value in projector.parameters() if value.ndim == 1)
    gain.data.uniform_(0.5, 2)
    bias.data.uniform_(-1, 1)
    ours = projector(x)

    def standard(z: torch.Tensor) -> torch.Tensor:
        return (z - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt()

    first, second = (weight / torch.linalg.matrix_norm(weight, 2) for weight in weights)
    hidden = (standard(x @ first.T) * gain + bias).clamp_min(0)
    torch.testing.assert_close(ours, standard(hidden @ second.T), rtol=1e-3, atol=1e-3)
    assert len(list(build_projector(5, ModelConfig(projector="linear")).parameters())) == 1


def test_a_discriminators_features_are_means_over_pixels_with_a_leak() -> None:
    torch.manual_seed(0)
    trunk, x = Trunk(8, 1, 8, blocks=0).eval(), torch.randn(2, 1, 8, 8)
    with torch.no_grad():
        maps = trunk.body(x)
        expected = torch.where(maps > 0, maps, 0.01 * maps).mean((2, 3))
    torch.testing.assert_close(trunk(x), expected)


def test_a_canvas_covers_black_to_white() -> None:
    canvas = Canvas(2, 1, black=-2.0, white=2.0)
    images = canvas.normalize(torch.tensor([-1.0, 0.0, 0.5, 1.0]).view(4, 1, 1, 1))
    assert images.flatten().tolist() == [-2, 0, 1, 2]
    assert canvas.pixels(images).flatten().tolist() == [0, 128, 191, 255]
    from fedssl.data.options import DataConfig

    made = Canvas.of(DataConfig(mean=0.4, std=0.2), (8, 8), 3, "it")
    assert (made.black, made.white) == pytest.approx((-2, 3))
    with pytest.raises(ConfigError, match="square"):
        Canvas.of(DataConfig(), (8, 9), 3, "it")
