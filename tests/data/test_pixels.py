"""Each step of a view against torchvision's, image by image; crops also in distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as reference
from scipy import stats
from torch import Tensor
from torch.nn import functional
from torchvision.transforms import RandomResizedCrop

from fedssl.data import pixels
from fedssl.rng import torch_rng

RATIO = (3 / 4, 4 / 3)


def some_images(channels: int = 3) -> Tensor:
    """Noise, steps with many equal colors, grays, and the corners of the color cube."""
    rng = torch_rng(0, "colour", channels)
    images = torch.rand(40, channels, 6, 8, generator=rng)
    images[10:20] = (images[10:20] * 3).round() / 3
    images[20:24] = images[20:24, :1]
    images[24:32] = torch.randint(0, 2, (8, channels, 6, 8), generator=rng).float()
    images[32], images[33] = 0, 1
    images[34:] = 0.5 + images[34:] * 1e-6
    return images


def uniform(low: float, high: float) -> list[float]:
    values = low + (high - low) * torch.rand(40, generator=torch_rng(1, "factors"))
    values[0], values[1] = low, high
    return values.tolist()


def changed(step: Callable[..., None], images: Tensor, *values: list[float]) -> Tensor:
    """Each image after the step, with its own values."""
    result = images.clone()
    for index, image in enumerate(result):
        step(image.numpy(), *(each[index] for each in values))
    return result


FACTORS: dict[str, tuple[Any, Any, list[float]]] = {
    "brightness": (pixels.brightness, reference.adjust_brightness, uniform(0, 1.9)),
    "contrast": (pixels.contrast, reference.adjust_contrast, uniform(0, 1.9)),
    "saturation": (pixels.saturation, reference.adjust_saturation, uniform(0, 1.9)),
    "hue": (pixels.hue, reference.adjust_hue, uniform(-0.5, 0.5)),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", FACTORS)
def test_equals_torchvision_for_every_image_and_its_factor(name: str, channels: int) -> None:
    ours, theirs, factors = FACTORS[name]
    images = some_images(channels)
    expected = torch.stack([theirs(image, f) for image, f in zip(images, factors, strict=True)])
    torch.testing.assert_close(changed(ours, images, factors), expected, atol=5e-6, rtol=0)


@pytest.mark.parametrize("name", FACTORS)
def test_its_neutral_factor_changes_nothing(name: str) -> None:
    neutral = [0.0 if name == "hue" else 1.0] * 40
    torch.testing.assert_close(
        changed(FACTORS[name][0], some_images(), neutral), some_images(), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("step", [pixels.saturation, pixels.hue])
def test_color_steps_do_not_change_one_channel(step: Callable[..., None]) -> None:
    images = some_images(channels=1)
    assert torch.equal(changed(step, images, [0.3] * 40), images)


def test_a_third_of_a_hue_turn_permutes_the_colors() -> None:
    images = some_images()
    turned = changed(pixels.hue, images, [1 / 3] * 40)
    torch.testing.assert_close(turned, images[:, [2, 0, 1]], atol=2e-6, rtol=0)


def test_hues_by_hand() -> None:
    colors = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.2, 0.6, 0.6], [0.4, 0.4, 0.4]])
    turned = changed(pixels.hue, colors[:, :, None, None], [0.5, 0.25, -0.5, 0.3])
    # red to cyan; orange (30°) to 120° = a green with no red; cyan to red; gray stays
    expected = torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 0.0], [0.6, 0.2, 0.2], [0.4, 0.4, 0.4]])
    torch.testing.assert_close(turned[:, :, 0, 0], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_grayscale_equals_torchvision(channels: int) -> None:
    images = some_images(channels)
    expected = reference.rgb_to_grayscale(images, num_output_channels=channels)
    torch.testing.assert_close(changed(pixels.grayscale, images), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("channels", [1, 3])
def test_solarize_equals_torchvision(channels: int) -> None:
    images = some_images(channels)
    assert torch.equal(changed(pixels.solarize, images), reference.solarize(images, 0.5))


def test_solarize_inverts_from_the_threshold_on() -> None:
    image = torch.tensor([0.0, 0.4, 0.5, 0.75, 1.0]).view(1, 1, 1, 5)
    assert changed(pixels.solarize, image).flatten().tolist() == [0.0, pytest.approx(0.4), 0.5, 0.25, 0.0]


def settings(**values: Any) -> Any:
    record = np.zeros(1, pixels.SETTINGS)[0]
    for name, value in {"ratio": RATIO, **values}.items():
        record[name] = value
    return record


def draw(
    count: int, size: tuple[int, int], area: tuple[float, float], ratio: tuple[float, float] = RATIO
) -> Tensor:
    """Crops [4, count]."""
    numbers = torch.rand(count, pixels.UNIFORMS, generator=torch_rng(0, "crops", *size)).numpy()
    view = settings(crop=area, ratio=ratio)
    return torch.tensor([pixels.crop_of(each, view, *size) for each in numbers]).T


def torchvision_draw(
    count: int, size: tuple[int, int], area: tuple[float, float], ratio: tuple[float, float] = RATIO
) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        image = torch.empty(1, *size)
        return torch.tensor([RandomResizedCrop.get_params(image, area, ratio) for _ in range(count)]).T


def sampled(images: Tensor, crops: Tensor, mirrored: bool = False) -> Tensor:
    """Crops (top, left, height, width [4, N]) of uint8 images [N, C, H, W], resized to all of them."""
    results = torch.empty(images.shape)
    channels, *sides = images.shape[1:]
    line = np.empty(sides[1] * channels, np.float32)
    for image, crop, result in zip(images, crops.T.tolist(), results, strict=True):
        taps = []
        for axis in (0, 1):
            which, weight = np.empty((2, sides[axis]), np.intp), np.empty((2, sides[axis]), np.float32)
            pixels.lines_of(crop[axis], crop[axis + 2], mirrored and axis == 1, which, weight)
            taps += [which, weight]
        pixels.resize(image.permute(1, 2, 0).contiguous().numpy(), *taps, line, result.numpy())
    return results


def noise(count: int, *size: int) -> Tensor:
    """uint8 without black."""
    return torch.randint(20, 256, (count, 3, *size), dtype=torch.uint8, generator=torch_rng(0, "images"))


def whole(images: Tensor) -> Tensor:
    return torch.tensor([0.0, 0.0, *images.shape[2:]])[:, None].repeat(1, len(images))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(32, 32), (8, 8), (20, 50), (224, 224), (3, 2), (1, 1)])
def test_a_crop_equals_cutting_it_out_and_resizing_it(size: tuple[int, int], channels: int) -> None:
    images = noise(30, *size)[:, :channels]
    crops = draw(30, size, (0.05, 1.0))
    expected = torch.stack(
        [
            reference.resized_crop(image / 255, *map(int, crop), list(size))
            for image, crop in zip(images, crops.T, strict=True)
        ]
    )
    torch.testing.assert_close(sampled(images, crops), expected, atol=1e-4, rtol=0)
    flipped = sampled(images, crops, mirrored=True)
    torch.testing.assert_close(flipped, reference.hflip(expected), atol=1e-4, rtol=0)


def test_the_whole_image_is_the_image_and_mirrored_its_flip() -> None:
    images = noise(2, 5, 7)
    torch.testing.assert_close(sampled(images, whole(images)), images / 255)
    torch.testing.assert_close(sampled(images, whole(images), mirrored=True), images.flip(3) / 255)


def test_pixels_outside_the_image_are_black() -> None:
    images = noise(1, 6, 6)
    crops = torch.tensor([[-2.0], [3.0], [6.0], [6.0]])
    expected = reference.crop(images / 255, -2, 3, 6, 6)
    torch.testing.assert_close(sampled(images, crops), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("start", [-0.5, 0.25, 2.75, -7.0, 9.0])
def test_between_pixels_and_at_the_edges_it_equals_pytorchs_bilinear_sampling(start: float) -> None:
    images = noise(1, 6, 6)
    crops = torch.tensor([[start], [1 - start], [6.0], [6.0]])
    x, y = ((2 * (torch.arange(6) + corner) + 1) / 6 - 1 for corner in (1 - start, start))
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)[None]
    expected = functional.grid_sample(images / 255, grid, align_corners=False)
    torch.testing.assert_close(sampled(images, crops), expected, atol=1e-5, rtol=0)


def test_a_resized_line_by_hand() -> None:
    # Two pixels, 1 and 2, over the four of a line: at 1 + (0, 1/4, 3/4, 1).
    which, weight = np.empty((2, 4), np.intp), np.empty((2, 4), np.float32)
    pixels.lines_of(1.0, 2.0, False, which, weight)
    assert which.T.tolist() == [[1, 2], [1, 2], [1, 2], [2, 3]]
    assert weight.T.tolist() == [[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [1.0, 0.0]]


@pytest.mark.parametrize("size", [(32, 32), (8, 8), (20, 50), (10, 40)])
@pytest.mark.parametrize("area", [(0.08, 1.0), (0.7, 1.0)])
def test_crops_have_torchvisions_distribution(size: tuple[int, int], area: tuple[float, float]) -> None:
    ours, theirs = draw(3000, size, area), torchvision_draw(3000, size, area)
    measures = [
        torch.cat((crop, crop[2:3] * crop[3:], crop[3:] / crop[2:3])).numpy() for crop in (ours, theirs)
    ]
    for mine, other in zip(*measures, strict=True):  # top, left, height, width, area, ratio
        assert stats.ks_2samp(mine, other, method="asymp").pvalue > 1e-4


@pytest.mark.parametrize("size", [(32, 32), (8, 8), (5, 3), (1, 1), (1, 30)])
def test_crops_are_whole_pixels_within_the_image(size: tuple[int, int]) -> None:
    top, left, height, width = crops = draw(2000, size, (0.01, 1.0))
    assert torch.equal(crops, crops.round())
    assert min(top.min(), left.min()) >= 0
    assert min(height.min(), width.min()) >= 1
    assert (top + height).max() <= size[0]
    assert (left + width).max() <= size[1]


def test_the_largest_random_number_stays_within_the_image() -> None:
    numbers = np.full(pixels.UNIFORMS, 1 - 2**-24, np.float32)
    numbers[: pixels.CORNER] = 0.5
    top, left, height, width = pixels.crop_of(numbers, settings(crop=(0.08, 1.0)), 32, 32)
    assert (top, left) == (32 - height, 32 - width)


@pytest.mark.parametrize("size", [(20, 100), (100, 20)])
def test_without_a_crop_that_fits_the_center_is_taken_as_torchvision_does(size: tuple[int, int]) -> None:
    area = (0.9, 1.0)  # too much for an allowed ratio
    assert draw(3, size, area).T.tolist() == torchvision_draw(3, size, area).T.tolist()


def test_an_area_of_one_is_no_crop() -> None:
    assert draw(5, (10, 40), (1.0, 1.0)).T.tolist() == [[0, 0, 10, 40]] * 5


@pytest.mark.parametrize("side", [2, 3, 8, 28, 32, 64, 96, 224])
def test_blur_equals_torchvision(side: int) -> None:
    size = (side, max(2, side // 2))
    images = torch.rand(6, 3, *size, generator=torch_rng(0, "images"))
    sigma = [0.1, 0.3, 0.7, 1.1, 1.6, 2.0]
    kernel = [pixels.kernel_size(size[1]), pixels.kernel_size(size[0])]
    expected = [
        reference.gaussian_blur(image, kernel, [s] * 2) for image, s in zip(images, sigma, strict=True)
    ]
    torch.testing.assert_close(changed(pixels.blur, images, sigma), torch.stack(expected), atol=2e-6, rtol=0)


def test_blur_of_a_single_pixel_is_that_pixel() -> None:
    images = torch.rand(3, 1, 1, 1, generator=torch_rng(0))
    torch.testing.assert_close(changed(pixels.blur, images, [0.1, 1.0, 2.0]), images)


def test_blur_by_hand() -> None:
    weight = math.exp(-0.5)
    center, beside = 1 / (1 + 2 * weight), weight / (1 + 2 * weight)
    dots = torch.eye(3).reshape(3, 1, 1, 3)  # a line of three pixels, of which one is white
    expected = [[center, beside, 0], [2 * beside, center, 2 * beside], [0, beside, center]]
    found = changed(pixels.blur, dots, [1.0] * 3)
    torch.testing.assert_close(found.reshape(3, 3), torch.tensor(expected))


def test_kernels_are_odd_and_about_a_tenth_of_the_side() -> None:
    sizes = {side: pixels.kernel_size(side) for side in (1, 2, 8, 28, 32, 50, 64, 96, 224)}
    assert sizes == {1: 1, 2: 3, 8: 3, 28: 3, 32: 3, 50: 5, 64: 7, 96: 9, 224: 23}


def test_the_four_steps_of_a_jitter_come_in_every_order_equally_often() -> None:
    planes, view, order = np.ones((3, 1, 1), np.float32), settings(), np.empty(4, np.intp)
    seen: dict[tuple[int, ...], int] = {}
    for each in torch.rand(24_000, pixels.UNIFORMS, generator=torch_rng(0, "order")).numpy():
        pixels.jitter(planes, each, view, order)
        seen[tuple(order.tolist())] = seen.get(tuple(order.tolist()), 0) + 1
    assert sorted(seen) == sorted(permutations(range(4)))
    assert stats.chisquare(list(seen.values())).pvalue > 1e-4


def test_a_jitter_does_its_steps_in_the_order_drawn() -> None:
    image, view, order = some_images()[0], settings(jitter=(0.5, 0.5, 0.5, 0.2)), np.empty(4, np.intp)
    steps = [theirs for _, theirs, _ in FACTORS.values()]
    for each in torch.rand(20, pixels.UNIFORMS, generator=torch_rng(0, "order")).numpy():
        found, expected = image.clone(), image.clone()
        pixels.jitter(found.numpy(), each, view, order)
        drawn = each[pixels.FACTORS : pixels.FACTORS + 4]
        factors = [*(0.5 + drawn[:3]), 0.2 * (2 * drawn[3] - 1)]  # from 0.5 to 1.5, and from -0.2 to 0.2
        for step in order:
            expected = steps[step](expected, float(factors[step]))
        torch.testing.assert_close(found, expected, atol=5e-6, rtol=0)


def test_code_is_compiled_without_a_writable_cache() -> None:
    names: dict[str, Any] = {}
    exec("def twice(values):\n    for i in range(len(values)):\n        values[i] *= 2", names)  # in no file
    values = np.arange(3.0)
    pixels.compiled_for_threads(names["twice"])(values)
    assert values.tolist() == [0, 2, 4]
