"""Crops and blurs against torchvision's, image by image and in distribution."""

from __future__ import annotations

import math

import pytest
import torch
import torchvision.transforms.functional as reference
from scipy import stats
from torch import Tensor
from torch.nn import functional
from torchvision.transforms import RandomResizedCrop

from fedssl.data import geometry
from fedssl.data.views import SHARP
from fedssl.rng import torch_rng

RATIO = (3 / 4, 4 / 3)


def draw(
    count: int, size: tuple[int, int], area: tuple[float, float], ratio: tuple[float, float] = RATIO
) -> Tensor:
    uniform = torch.rand(geometry.Crops.uniforms, 1, count, generator=torch_rng(0, "crops", *size))
    return geometry.Crops(size, [area], [ratio])(uniform)[:, 0]


def torchvision_draw(
    count: int, size: tuple[int, int], area: tuple[float, float], ratio: tuple[float, float] = RATIO
) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        image = torch.empty(1, *size)
        return torch.tensor([RandomResizedCrop.get_params(image, area, ratio) for _ in range(count)]).T


def sampled(images: Tensor, crops: Tensor, mirrored: bool = False) -> Tensor:
    """Crops (top, left, height, width [4, N]) of images [N, C, H, W], resized to all of them."""
    flip = torch.full((2, 1, len(images)), False)
    flip[1] = mirrored
    rows, columns = (
        geometry.resized(crops[axis, None], crops[axis + 2, None], flip[axis], images.shape[axis + 2])
        for axis in (0, 1)
    )
    (found,) = geometry.sample(images.permute(0, 2, 3, 1), rows, columns)
    return found.mT


def whole(images: Tensor) -> Tensor:
    return torch.tensor([0.0, 0.0, *images.shape[2:]])[:, None].repeat(1, len(images))


@pytest.mark.parametrize("size", [(32, 32), (8, 8), (20, 50), (224, 224), (3, 2), (1, 1)])
def test_sampling_a_crop_equals_cutting_it_out_and_resizing_it(size: tuple[int, int]) -> None:
    images = torch.rand(30, 3, *size, generator=torch_rng(0, "images"))
    crops = draw(30, size, (0.05, 1.0))
    expected = [
        reference.resized_crop(image, *map(int, crop), list(size))
        for image, crop in zip(images, crops.T, strict=True)
    ]
    torch.testing.assert_close(sampled(images, crops), torch.stack(expected), atol=1e-4, rtol=0)
    flipped = reference.hflip(torch.stack(expected))
    torch.testing.assert_close(sampled(images, crops, mirrored=True), flipped, atol=1e-4, rtol=0)


def test_the_whole_image_is_the_image_and_mirrored_its_flip() -> None:
    images = torch.rand(2, 3, 5, 7, generator=torch_rng(0, "images"))
    torch.testing.assert_close(sampled(images, whole(images)), images)
    torch.testing.assert_close(sampled(images, whole(images), mirrored=True), images.flip(3))


def test_outside_of_the_image_it_is_black() -> None:
    images = torch.rand(1, 3, 6, 6, generator=torch_rng(0, "images")) + 0.1
    crops = torch.tensor([[-2.0], [3.0], [6.0], [6.0]])
    expected = reference.crop(images, -2, 3, 6, 6)
    torch.testing.assert_close(sampled(images, crops), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("start", [-0.5, 0.25, 2.75, -7.0, 9.0])
def test_between_pixels_and_at_the_edges_it_equals_pytorchs_bilinear_sampling(start: float) -> None:
    images = torch.rand(1, 3, 6, 6, generator=torch_rng(0, "images")) + 0.1
    crops = torch.tensor([[start], [1 - start], [6.0], [6.0]])
    x, y = ((2 * (torch.arange(6) + corner) + 1) / 6 - 1 for corner in (1 - start, start))
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)[None]
    expected = functional.grid_sample(images, grid, align_corners=False)
    torch.testing.assert_close(sampled(images, crops), expected, atol=1e-5, rtol=0)


def test_each_view_has_its_own_crop_of_the_same_images() -> None:
    images = torch.rand(4, 3, 8, 6, generator=torch_rng(0, "images"))
    crops = torch.stack([draw(4, (8, 6), area) for area in ((0.1, 0.3), (0.5, 1.0))], 1)
    flip = torch.zeros(2, 4, dtype=torch.bool)
    rows, columns = (geometry.resized(crops[axis], crops[axis + 2], flip, (8, 6)[axis]) for axis in (0, 1))
    together = geometry.sample(images.permute(0, 2, 3, 1), rows, columns)
    for view in (0, 1):
        assert torch.equal(together[view].mT, sampled(images, crops[:, view]))


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
    uniform = torch.full((geometry.Crops.uniforms, 1, 1), 1 - 2**-24)
    uniform[: 2 * geometry.TRIES] = 0.5
    top, left, height, width = geometry.Crops((32, 32), [(0.08, 1.0)], [RATIO])(uniform).flatten().tolist()
    assert (top, left) == (32 - height, 32 - width)


@pytest.mark.parametrize("size", [(20, 100), (100, 20)])
def test_without_a_crop_that_fits_the_centre_is_taken_as_torchvision_does(size: tuple[int, int]) -> None:
    area = (0.9, 1.0)  # too much for an allowed ratio
    assert draw(3, size, area).T.tolist() == torchvision_draw(3, size, area).T.tolist()


def test_an_area_of_one_is_no_crop_in_that_view_only() -> None:
    uniform = torch.rand(geometry.Crops.uniforms, 2, 50, generator=torch_rng(0))
    whole, cropped = geometry.Crops((10, 40), [(1.0, 1.0), (0.2, 0.5)], [RATIO, RATIO])(uniform).unbind(1)
    assert whole.T.tolist() == [[0, 0, 10, 40]] * 50
    assert (cropped[2] * cropped[3]).max() <= 0.6 * 400


def test_a_resized_line_by_hand() -> None:
    # Two pixels, 1 and 2, over the four of a line: at 1 + (0, 1/4, 3/4, 1).
    which, weight = geometry.resized(torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([False]), 4)
    assert which.tolist() == [[[1, 2], [1, 2], [1, 2], [2, 3]]]
    torch.testing.assert_close(weight, torch.tensor([[[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [1.0, 0.0]]]))


@pytest.mark.parametrize("side", [2, 3, 8, 28, 32, 64, 96, 224])
def test_blur_equals_torchvision(side: int) -> None:
    size = (side, max(2, side // 2))
    images = torch.rand(6, 3, *size, generator=torch_rng(0, "images"))
    sigma = torch.tensor([0.1, 0.3, 0.7, 1.1, 1.6, 2.0])
    kernel = [geometry.kernel_size(size[1]), geometry.kernel_size(size[0])]
    expected = [
        reference.gaussian_blur(image, kernel, [float(s)] * 2) for image, s in zip(images, sigma, strict=True)
    ]
    torch.testing.assert_close(blurred(images, sigma), torch.stack(expected), atol=2e-6, rtol=0)


def blurred(images: Tensor, sigma: Tensor) -> Tensor:
    return geometry.blur(images.mT, sigma).permute(0, 3, 1, 2)


def test_blur_of_a_single_pixel_is_that_pixel() -> None:
    images = torch.rand(3, 1, 1, 1, generator=torch_rng(0))
    torch.testing.assert_close(blurred(images, torch.tensor([0.1, 1.0, 2.0])), images)


@pytest.mark.parametrize("side", [3, 32, 224])
def test_a_sharp_blur_changes_no_bit(side: int) -> None:
    images = torch.rand(2, 3, side, side, generator=torch_rng(0, "images"))
    assert torch.equal(blurred(images, torch.full((2,), SHARP)), images)


def test_blur_by_hand() -> None:
    weight = math.exp(-0.5)
    centre, beside = 1 / (1 + 2 * weight), weight / (1 + 2 * weight)
    line = geometry.mix(torch.eye(3), geometry.gaussian(torch.tensor(1.0), 3))
    expected = [[centre, 2 * beside, 0], [beside, centre, beside], [0, 2 * beside, centre]]
    torch.testing.assert_close(line, torch.tensor(expected))


def test_kernels_are_odd_and_about_a_tenth_of_the_side() -> None:
    sizes = {side: geometry.kernel_size(side) for side in (1, 2, 8, 28, 32, 50, 64, 96, 224)}
    assert sizes == {1: 1, 2: 3, 8: 3, 28: 3, 32: 3, 50: 5, 64: 7, 96: 9, 224: 23}
