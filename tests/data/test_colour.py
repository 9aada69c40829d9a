"""Each colour operation against torchvision's, image by image."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torchvision.transforms.functional as reference
from torch import Tensor

from fedssl.data import colour
from fedssl.rng import torch_rng


def some_images(channels: int = 3) -> Tensor:
    """Noise, steps with many equal colours, greys, and the corners of the colour cube."""
    rng = torch_rng(0, "colour", channels)
    images = torch.rand(40, channels, 6, 8, generator=rng)
    images[10:20] = (images[10:20] * 3).round() / 3
    images[20:24] = images[20:24, :1]
    images[24:32] = torch.randint(0, 2, (8, channels, 6, 8), generator=rng).float()
    images[32], images[33] = 0, 1
    images[34:] = 0.5 + images[34:] * 1e-6
    return images


def uniform(low: float, high: float) -> Tensor:
    values = low + (high - low) * torch.rand(40, generator=torch_rng(1, "factors"))
    values[0], values[1] = low, high
    return values


OPERATIONS = {
    "brightness": (colour.brightness_, reference.adjust_brightness, uniform(0, 1.9)),
    "contrast": (colour.contrast_, reference.adjust_contrast, uniform(0, 1.9)),
    "saturation": (colour.saturation_, reference.adjust_saturation, uniform(0, 1.9)),
    "hue": (colour.hue_, reference.adjust_hue, uniform(-0.5, 0.5)),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_equals_torchvision_for_every_image_and_its_factor(name: str, channels: int) -> None:
    ours, theirs, factors = OPERATIONS[name]
    images = some_images(channels)
    expected = torch.stack([theirs(image, float(f)) for image, f in zip(images, factors, strict=True)])
    torch.testing.assert_close(ours(images.clone(), factors), expected, atol=5e-6, rtol=0)


@pytest.mark.parametrize("name", OPERATIONS)
def test_works_in_place(name: str) -> None:
    ours, _, factors = OPERATIONS[name]
    images = some_images()
    before = images.clone()
    assert ours(images, factors) is images
    assert not torch.equal(images, before)


@pytest.mark.parametrize("name", OPERATIONS)
def test_its_neutral_factor_changes_nothing(name: str) -> None:
    ours, _, _ = OPERATIONS[name]
    neutral = torch.full((40,), 0.0 if name == "hue" else 1.0)
    torch.testing.assert_close(ours(some_images(), neutral), some_images(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("step", [colour.saturation_, colour.hue_])
def test_one_channel_has_no_colour_to_change(step: Callable[[Tensor, Tensor], Tensor]) -> None:
    images = some_images(channels=1)
    assert torch.equal(step(images.clone(), torch.full((40,), 0.3)), images)


def test_a_third_of_a_turn_of_the_hue_passes_the_colours_on() -> None:
    images = some_images()
    turned = colour.hue_(images.clone(), torch.full((40,), 1 / 3))
    torch.testing.assert_close(turned, images[:, [2, 0, 1]], atol=2e-6, rtol=0)


def test_hues_by_hand() -> None:
    pixels = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.2, 0.6, 0.6], [0.4, 0.4, 0.4]])
    turned = colour.hue_(pixels[:, :, None, None].clone(), torch.tensor([0.5, 0.25, -0.5, 0.3]))
    # red to cyan; orange (30°) to 120° = a green with no red; cyan to red; grey stays
    expected = torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 0.0], [0.6, 0.2, 0.2], [0.4, 0.4, 0.4]])
    torch.testing.assert_close(turned[:, :, 0, 0], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_greyscale_equals_torchvision(channels: int) -> None:
    images = some_images(channels)
    expected = reference.rgb_to_grayscale(images, num_output_channels=channels)
    torch.testing.assert_close(colour.greyscale_(images.clone()), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_solarize_equals_torchvision(channels: int) -> None:
    images = some_images(channels)
    assert torch.equal(colour.solarize_(images.clone()), reference.solarize(images, 0.5))


def test_solarize_inverts_from_the_threshold_on() -> None:
    images = torch.tensor([0.0, 0.4, 0.5, 0.75, 1.0]).view(1, 1, 1, 5)
    assert colour.solarize_(images).flatten().tolist() == [0.0, pytest.approx(0.4), 0.5, 0.25, 0.0]
