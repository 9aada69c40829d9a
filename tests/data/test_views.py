"""Views against torchvision's transforms, in distribution, and their other guarantees."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
import torch
from scipy import stats
from tests.threads import one_thread  # noqa: F401
from torch import Tensor
from torchvision import transforms

from fedssl.config import load
from fedssl.data.images import ImageSet
from fedssl.data.view_recipes import Augmentation, CompiledViews, View, build_recipe, distortion
from fedssl.data.views import Views, plain
from fedssl.errors import ConfigError, DataError
from fedssl.rng import torch_rng

RECIPES = ("simclr", "moco-v1", "byol", "mae", "supervised", "plain")
SAMPLES = 3008


def build(
    name: str,
    size: int | tuple[int, int] = 32,
    channels: int = 3,
    num_views: int = 2,
    **options: Any,
) -> Views:
    """Views of pixels in [0, 1]: without normalization."""
    sides = (size, size) if isinstance(size, int) else size
    return Views(build_recipe(name, **options), sides, channels, 0.0, 1.0, num_views)


def recipe(name: str, side: int = 32) -> tuple[View, ...]:
    chosen = build_recipe(name)
    assert isinstance(chosen, CompiledViews)
    return chosen.views(side)


def noise(count: int, size: int = 32, channels: int = 3) -> Tensor:
    return torch.randint(
        0, 256, (count, size, size, channels), dtype=torch.uint8, generator=torch_rng(0, "noise", size)
    )


def structured(size: int = 12) -> Tensor:
    """One image [H, W, 3] with gradients, a bright corner and strong colors."""
    y, x = torch.meshgrid(torch.linspace(0, 1, size), torch.linspace(0, 1, size), indexing="ij")
    image = torch.stack((0.9 * x, 0.2 + 0.5 * y * x, 0.6 * (1 - y)), -1)
    image[: size // 3, : size // 3] = torch.tensor([0.95, 0.8, 0.1])
    return image.mul(255).round().byte()


def ours(views: Views, image: Tensor, samples: int = SAMPLES) -> list[Tensor]:
    """Samples of each view of one image, in batches of 32."""
    batch, rng = image.expand(32, *image.shape), torch_rng(0, "views")
    return [torch.cat(view) for view in zip(*(views(batch, rng) for _ in range(samples // 32)), strict=True)]


@cache
def torchvision_samples(view: View) -> Tensor:
    """The same number of samples of the image from torchvision, one at a time."""
    image = structured().permute(2, 0, 1).float() / 255
    size = list(image.shape[1:])
    colors = [
        transforms.RandomApply([transforms.ColorJitter(*view.jitter)], view.jitter_p),
        transforms.RandomGrayscale(view.grey),
    ]
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(size, (view.crop_min, view.crop_max), view.ratio),
            transforms.RandomHorizontalFlip(view.flip),
            *(reversed(colors) if view.grey_first else colors),
            transforms.RandomApply([transforms.GaussianBlur(3, view.blur_sigma)], view.blur),
            transforms.RandomSolarize(0.5, view.solarize),
        ]
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return torch.stack([transform(image) for _ in range(SAMPLES)])


def assert_share(count: int, of: int, chance: float) -> None:
    """A share within 4.5 standard deviations of a binomial."""
    assert abs(count - of * chance) <= 4.5 * math.sqrt(of * chance * (1 - chance)) + 1e-9


def assert_same_distribution(a: Tensor, b: Tensor) -> None:
    """Kolmogorov-Smirnov, with noise far above rounding: few crops are possible, so there are many ties."""
    rng = torch_rng(0, "ties")
    first, second = ((x + 1e-3 * torch.rand(x.shape, generator=rng)).numpy() for x in (a, b))
    assert stats.ks_2samp(first, second, method="asymp").pvalue > 1e-4


@pytest.mark.parametrize(
    ("name", "index"), [("simclr", 0), ("moco-v1", 0), ("byol", 0), ("byol", 1), ("mae", 0)]
)
def test_views_have_torchvisions_distribution(name: str, index: int) -> None:
    mine = ours(build(name, 12), structured())[index]
    theirs = torchvision_samples(recipe(name)[index])
    # Every pixel of every channel: its mean and its variance, within 5 standard errors.
    center = theirs.mean(0)
    for first, second in ((mine, theirs), ((mine - center).square(), (theirs - center).square())):
        error = ((first.var(0) + second.var(0)) / SAMPLES).sqrt()
        assert ((first.mean(0) - second.mean(0)).abs() / error).max() < 5
    # Every image: brightness and contrast per channel, and the color between channels.
    measures: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda x: x.mean((2, 3)),
        lambda x: x.std((2, 3)),
        lambda x: (x - x.roll(1, dims=1)).abs().mean((2, 3)),
    )
    for measure in measures:
        for values in zip(measure(mine).T, measure(theirs).T, strict=True):
            assert_same_distribution(*values)


def ramps(size: int = 32) -> Tensor:
    """An image whose red is the column and whose green is the row, times 8."""
    line = torch.arange(size, dtype=torch.uint8) * 8
    return torch.stack(
        (line.expand(size, size), line[:, None].expand(size, size), torch.zeros(size, size).byte()), -1
    )


def test_crops_seen_in_the_images_have_torchvisions_areas_ratios_and_places() -> None:
    x = torch.cat(ours(build("mae"), ramps(), 1600)) * 255 / 8  # in pixels
    steps = torch.stack((x[:, 0, 16, 16] - x[:, 0, 16, 15], x[:, 1, 16, 16] - x[:, 1, 15, 16]))
    width, height = steps.abs() * 32
    left = (x[:, 0, 16, 15] + x[:, 0, 16, 16]) / 2 - width / 2 + 0.5
    top = (x[:, 1, 15, 16] + x[:, 1, 16, 16]) / 2 - height / 2 + 0.5
    assert_share(int((steps[0] < 0).sum()), 3200, 0.5)
    assert (steps[1] > 0).all()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        reference = [
            transforms.RandomResizedCrop.get_params(torch.empty(3, 32, 32), (0.2, 1), (3 / 4, 4 / 3))
            for _ in x
        ]
    their_top, their_left, their_height, their_width = torch.tensor(reference).T
    assert_same_distribution(width * height, their_width * their_height)
    assert_same_distribution(width / height, their_width / their_height)
    assert_same_distribution(left, their_left)
    assert_same_distribution(top, their_top)


def test_supervised_crops_move_by_up_to_an_eighth_into_black() -> None:
    image = torch.full((32, 32, 3), 255, dtype=torch.uint8)
    (x,) = ours(build("supervised", num_views=1, flip=0.0), image, 1600)
    black = x[:, 0] < 0.5
    seen = black.all(2).sum(1), black.all(1).sum(1)  # rows and columns of black
    for margin in seen:
        assert margin.max() == 4
        assert_share(int((margin == 0).sum()), 1600, 1 / 9)  # of -4 … 4
        assert_share(int((margin == 4).sum()), 1600, 2 / 9)
    assert torch.corrcoef(torch.stack(seen).float())[0, 1].abs() < 0.1


def test_without_a_shift_supervised_views_are_the_images_or_their_mirror() -> None:
    images = noise(40)
    (x,) = build("supervised", num_views=1, flip=1.0)(images, torch_rng(0))
    unshifted = [i for i in range(40) if torch.allclose(x[i], plain(images, 0, 1)[i].flip(2), atol=1e-4)]
    shifted = [
        i
        for i in range(40)
        if (x[i, :, [0, -1]] == 0).all(2).any() or (x[i, :, :, [0, -1]] == 0).all(1).any()
    ]
    assert sorted(unshifted + shifted) == list(range(40))


@pytest.mark.parametrize("chance", [0.0, 0.2, 1.0])
def test_as_many_are_gray_solarized_flipped_and_blurred_as_asked(chance: float) -> None:
    image = structured()
    original = plain(image[None], 0, 1)

    def changed(**options: Any) -> int:
        (x,) = ours(build("plain", 12, num_views=1, **options), image, 1600)
        return int(((x - original).abs().amax((1, 2, 3)) > 1e-3).sum())

    assert_share(changed(grey=chance), 1600, chance)
    assert_share(changed(solarize=chance), 1600, chance)
    assert_share(changed(flip=chance), 1600, chance)
    assert_share(
        changed(blur=chance), 1600, chance * (2.0 - 0.26) / 1.9
    )  # below 0.26 a blur is too weak to see


def test_gray_images_have_equal_channels_and_solarized_ones_no_white() -> None:
    (grey,) = build("plain", num_views=1, grey=1.0)(noise(4), torch_rng(0))
    assert torch.equal(grey[:, 0], grey[:, 1])
    assert torch.equal(grey[:, 0], grey[:, 2])
    (solarized,) = build("plain", num_views=1, solarize=1.0)(noise(4), torch_rng(0))
    assert solarized.max() <= 0.5 + 1e-6


def test_images_without_jitter_are_unchanged() -> None:
    (x,) = ours(build("simclr", 12, num_views=1, crop_min=1.0, flip=0.0, grey=0.0), structured(), 1600)
    same = (x - plain(structured()[None], 0, 1)).abs().amax((1, 2, 3)) < 1e-3
    assert_share(int(same.sum()), 1600, 0.2)


def test_byol_blurs_the_first_view_and_solarizes_some_of_the_second() -> None:
    first, second = build("byol").views
    assert (first.blur, first.solarize) == (1.0, 0.0)
    assert (second.blur, second.solarize) == (0.1, 0.2)
    images = noise(400, 8)
    sharp = plain(images, 0, 1).diff(dim=3).abs().mean((1, 2, 3))
    views = build("byol", 8, crop_min=1.0, jitter=0.0, grey=0.0, num_views=3)(images, torch_rng(0))
    blurred = [int((view.diff(dim=3).abs().mean((1, 2, 3)) < 0.95 * sharp).sum()) for view in views]
    bright = [int((view.amax((1, 2, 3)) > 0.51).sum()) for view in views]
    assert blurred[0] > 300  # all but those with a small sigma
    assert blurred[2] > 300  # a third view is like the first
    assert bright[0] == bright[2] == 400
    assert_share(400 - bright[1], 400, 0.2)


def test_recipes_are_the_published_ones() -> None:
    (small,), (large,) = recipe("simclr", 32), recipe("simclr", 64)
    assert list(small.jitter) == pytest.approx([0.4, 0.4, 0.4, 0.1])
    assert list(large.jitter) == pytest.approx([0.8, 0.8, 0.8, 0.2])
    assert (small.jitter_p, small.blur, large.blur, large.grey) == (0.8, 0.0, 0.5, 0.2)
    assert (small.crop_min, small.crop_max, small.ratio, small.flip) == (0.08, 1.0, (3 / 4, 4 / 3), 0.5)
    (moco,) = recipe("moco-v1")
    assert (moco.crop_min, moco.jitter, moco.jitter_p, moco.grey) == (0.2, (0.4,) * 4, 1.0, 0.2)
    assert [view.jitter for view in recipe("byol")] == [(0.4, 0.4, 0.2, 0.1)] * 2
    assert recipe("mae") == (View(crop_min=0.2, flip=0.5),)
    assert recipe("plain") == (View(),)


def test_auto_uses_the_objectives_recipe_unless_one_is_set() -> None:
    photos = ImageSet(torch.zeros(1, 32, 32, 3, dtype=torch.uint8))
    assert Views.of(photos, build_recipe("auto"), "mae", 0.5, 0.25).views == recipe("mae") * 2
    assert Views.of(photos, build_recipe("plain"), "mae", 0.5, 0.25).views == recipe("plain") * 2


@pytest.mark.parametrize("name", RECIPES)
def test_overrides_hold_for_every_view_of_every_recipe(name: str) -> None:
    options: dict[str, Any] = {
        "crop_min": 0.5,
        "flip": 0.25,
        "jitter": 2.0,
        "grey": 0.1,
        "blur": 0.6,
        "solarize": 0.3,
    }
    views = build(name, **options)
    for view in views.views:
        assert (view.crop_min, view.flip, view.grey, view.blur, view.solarize) == (0.5, 0.25, 0.1, 0.6, 0.3)
        assert view.jitter == distortion(2.0)
    assert len(views(noise(3), torch_rng(0))) == 2


@pytest.mark.parametrize("option", ["blur", "grey", "solarize", "flip", "jitter"])
@pytest.mark.parametrize("name", ["mae", "plain", "supervised"])
def test_an_override_adds_what_the_recipe_lacks(name: str, option: str) -> None:
    without, added = (build(name, **{option: value})(noise(20), torch_rng(0))[0] for value in (0.0, 1.0))
    changed = (without - added).abs().amax((1, 2, 3)) > 1e-3
    assert changed.sum() >= 10  # jitter skips a fifth, and a blur can be too weak to see


def test_a_strong_jitter_stays_within_what_hue_and_factors_allow() -> None:
    (x,) = build("plain", num_views=1, jitter=5.0)(noise(64), torch_rng(0))
    assert x.isfinite().all()
    assert x.min() >= -1e-5
    assert x.max() <= 1 + 1e-5


def test_the_same_seed_gives_the_same_bits_and_another_does_not() -> None:
    views, images = build("byol", grey=0.5), noise(20)
    first, again, other = (views(images, torch_rng(seed)) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_the_generator_advances_from_batch_to_batch() -> None:
    views, images, rng = build("simclr"), noise(4), torch_rng(0)
    assert not torch.equal(views(images, rng)[0], views(images, rng)[0])


@pytest.mark.parametrize("name", ["simclr", "byol", "supervised"])
def test_bits_depend_neither_on_threads_nor_on_the_batch(name: str) -> None:
    views, images = build(name), noise(70)
    expected = views(images, torch_rng(0))
    for threads in (1, 2, 3, 64):  # there may be fewer
        torch.set_num_threads(threads)
        again = views(images, torch_rng(0))
        assert all(torch.equal(a, b) for a, b in zip(expected, again, strict=True))
        assert torch.get_num_threads() == threads
    (first,), (second,) = (
        build("plain", num_views=1, jitter=1.0)(images[part], torch_rng(0))
        for part in (slice(0, 1), slice(0, 70))
    )
    assert torch.equal(first[0], second[0])


def test_numba_does_not_change_pytorchs_threads() -> None:
    program = """
import torch
from fedssl.data.view_recipes import build_recipe
from fedssl.data.views import Views
torch.set_num_threads(1)
views = Views(build_recipe("simclr"), (8, 8), 3, 0.5, 0.25)
views(torch.zeros(4, 8, 8, 3, dtype=torch.uint8), torch.Generator())
print(torch.get_num_threads())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_concurrent_views_equal_sequential_ones() -> None:
    views, images = build("byol"), noise(40)
    expected = views(images, torch_rng(0))
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: views(images, torch_rng(0)), range(40)):
            assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_global_random_numbers_are_not_touched() -> None:
    before = torch.random.get_rng_state()
    build("byol")(noise(4), torch_rng(0))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_every_image_and_view_has_its_own_parameters() -> None:
    image = noise(1).expand(64, 32, 32, 3)
    x = torch.cat(build("simclr")(image, torch_rng(0)))
    assert len({image.numpy().tobytes() for image in x}) == 128


def test_the_batch_is_not_changed() -> None:
    images = noise(8)
    before = images.clone()
    build("byol")(images, torch_rng(0))
    assert torch.equal(images, before)


@pytest.mark.parametrize("name", RECIPES)
def test_views_are_float_channels_last_and_normalized(name: str) -> None:
    images = noise(6)
    raw = build(name)(images, torch_rng(0))
    views = Views(build_recipe(name), (32, 32), 3, 0.4, 0.2)(images, torch_rng(0))
    for x, y in zip(raw, views, strict=True):
        assert y.dtype == torch.float32
        assert y.shape == (6, 3, 32, 32)
        assert y.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(y, (x - 0.4) / 0.2, atol=1e-5, rtol=0)


def test_plain_by_hand() -> None:
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 1, 1, 3)
    x = plain(images, 0.5, 0.25)
    torch.testing.assert_close(x.flatten(), torch.tensor([-2.0, -1.2, 2.0]))
    assert x.shape == (1, 3, 1, 1)


def test_plain_recipe_is_plain_and_channels_last() -> None:
    images = noise(5, 8)[:, ::2]  # not contiguous
    views = Views(build_recipe("plain"), (4, 8), 3, 0.5, 0.25)(images, torch_rng(0))
    for x in (*views, plain(images, 0.5, 0.25)):
        assert torch.equal(x, plain(images.contiguous(), 0.5, 0.25))
        assert x.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(x, (images.permute(0, 3, 1, 2) / 255 - 0.5) / 0.25, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(1, 1), (2, 3), (8, 8), (28, 28), (20, 50), (96, 96)])
def test_any_size_works(size: tuple[int, int], channels: int, name: str) -> None:
    images = torch.randint(0, 256, (5, *size, channels), dtype=torch.uint8, generator=torch_rng(0))
    views = build(name, size, channels, num_views=3, blur=0.5, solarize=0.5)(images, torch_rng(0))
    assert len(views) == 3
    for x in views:
        assert x.shape == (5, channels, *size)
        assert x.is_contiguous(memory_format=torch.channels_last)
        assert x.isfinite().all()
        assert x.min() >= -1e-5
        assert x.max() <= 1 + 1e-5


def test_one_channel_sees_the_same_crops_and_brightness_as_three() -> None:
    grey = noise(16, channels=1)
    (one,) = build("simclr", channels=1, num_views=1)(grey, torch_rng(0))
    (three,) = build("simclr", num_views=1)(grey.expand(16, 32, 32, 3), torch_rng(0))
    torch.testing.assert_close(one.expand(16, 3, 32, 32), three, atol=2e-3, rtol=0)  # luma sums to 0.9999


@pytest.mark.parametrize("channels", [2, 5, 16])
def test_every_channel_is_cropped_and_brightened_as_if_it_were_alone(channels: int) -> None:
    images = noise(8, channels=channels)
    together = build("byol", channels=channels)(images, torch_rng(0))
    for channel in range(channels):
        alone = build("byol", channels=1)(images[..., channel : channel + 1].contiguous(), torch_rng(0))
        for view, own in zip(together, alone, strict=True):
            torch.testing.assert_close(view[:, channel : channel + 1], own, atol=1e-5, rtol=0)


@pytest.mark.parametrize("channels", [3, 5])
@pytest.mark.parametrize("name", ["simclr", "plain"])
def test_channels_are_normalized_separately(name: str, channels: int) -> None:
    mean, std = tuple(0.1 * c for c in range(channels)), tuple(0.2 + 0.1 * c for c in range(channels))
    images = noise(4, channels=channels)
    raw = Views(build_recipe(name), (32, 32), channels, 0.0, 1.0)(images, torch_rng(0))
    views = Views(build_recipe(name), (32, 32), channels, mean, std)(images, torch_rng(0))
    for x, y in zip(raw, views, strict=True):
        expected = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(channels)], dim=1)
        torch.testing.assert_close(y, expected, atol=1e-5, rtol=0)


def test_an_empty_batch_gives_empty_views() -> None:
    assert [x.shape for x in build("byol")(noise(4)[:0], torch_rng(0))] == [(0, 3, 32, 32)] * 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", RECIPES)
def test_views_are_the_same_on_a_gpu(name: str) -> None:
    on_cpu, on_gpu = (
        build(name)(noise(16), torch_rng(0), torch.device(device)) for device in ("cpu", "cuda")
    )
    for x, y in zip(on_cpu, on_gpu, strict=True):
        assert y.device.type == "cuda"
        assert y.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(x, y.cpu(), atol=1e-5, rtol=0)


def test_wrong_images_are_refused() -> None:
    views = build("simclr")
    with pytest.raises(DataError, match=r"\[B, 32, 32, 3\], not of float32 \[2, 32, 32, 3\]"):
        views(noise(2).float(), torch_rng(0))
    with pytest.raises(DataError, match=r"not of uint8 \[2, 28, 28, 3\]"):
        views(noise(2, 28), torch_rng(0))
    with pytest.raises(DataError, match=r"not of uint8 \[2, 3, 32, 32\]"):
        views(noise(2).permute(0, 3, 1, 2), torch_rng(0))


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean simclr"):
        recipe("simcler")
    with pytest.raises(DataError, match="17 channels: 1 to 16 are possible"):
        build("simclr", channels=17)
    with pytest.raises(ConfigError, match="one for each of the images' 3 channels, not 2"):
        Views(build_recipe("simclr"), (32, 32), 3, (0.5, 0.4), 0.25)
    with pytest.raises(ConfigError, match="num_views=0"):
        build("simclr", num_views=0)


def test_digits_are_not_mirrored_by_default() -> None:
    digits = ImageSet(torch.zeros(1, 8, 8, 1, dtype=torch.uint8), mirrored=False)
    photos = ImageSet(torch.zeros(1, 8, 8, 3, dtype=torch.uint8))

    def flips(images: ImageSet, **options: Any) -> set[float]:
        views = Views.of(images, build_recipe("auto", **options), "simclr", 0.5, 0.25)
        return {view.flip for view in views.views}

    assert flips(digits) == {0.0}
    assert flips(digits, flip=0.25) == {0.25}
    assert flips(photos) == {0.5}


class Speckle(Augmentation):
    """White pixels at random places."""

    share: float = 0.5

    def augment(self, images: Tensor, rng: torch.Generator) -> Tensor:
        x = images.permute(0, 3, 1, 2) / 255
        return x.masked_fill(torch.rand(x.shape, generator=rng) < self.share, 1.0)


def test_a_users_augmentation_by_hand() -> None:
    images = noise(4)
    first, second = Views(Speckle(), (32, 32), 3, 0.5, 0.25)(images, torch_rng(3))
    rng = torch_rng(3)
    for found in (first, second):
        white = torch.rand(4, 3, 32, 32, generator=rng) < 0.5
        expected = torch.where(white, torch.tensor(1.0), images.permute(0, 3, 1, 2) / 255)
        torch.testing.assert_close(found, (expected - 0.5) / 0.25)
        assert found.is_contiguous(memory_format=torch.channels_last)


def test_an_augmentations_fields_are_keys(tmp_path: Any) -> None:
    file = tmp_path / "speckle.py"
    file.write_text(
        "from fedssl.data.view_recipes import Augmentation\n"
        "class Speckle(Augmentation):\n    share: float = 0.5\n"
    )
    name = f"{file}:Speckle"
    config = load({}, {"views.recipe": name, "views.share": 0.25})
    assert config.views.resolve("simclr") is config.views
    assert config.to_dict()["views"] == {"recipe": name, "share": 0.25}
    with pytest.raises(ConfigError, match=r"unknown key 'views.flip'"):
        load({}, {"views.recipe": name, "views.flip": 0.5})
    with pytest.raises(ConfigError, match=r"must be a subclass of fedssl.data.view_recipes.ViewRecipe"):
        load({}, {"views.recipe": "fedssl.objectives.simclr:SimCLR"})


def test_auto_uses_the_objectives_class() -> None:
    assert build_recipe("auto").resolve(Speckle) == Speckle(recipe="Speckle")
    with pytest.raises(ConfigError, match=r"unknown key 'views.flip'"):
        build_recipe("auto", flip=0.5).resolve(Speckle)
    with pytest.raises(ConfigError, match="recipe's name or class"):
        build_recipe("auto").resolve(View)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (torch.zeros(2, 32, 32, 3), r"torch.float32 \[2, 32, 32, 3\]"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), r"torch.uint8 \[2, 3, 32, 32\]"),
        (None, "NoneType"),
    ],
)
def test_a_wrong_result_of_an_augmentation_is_refused(result: Any, found: str) -> None:
    class Wrong(Augmentation):
        def augment(self, images: Tensor, rng: torch.Generator) -> Tensor:
            return result  # type: ignore[no-any-return]

    with pytest.raises(DataError, match=rf"floating-point images \[2, 3, 32, 32\], not {found}"):
        Views(Wrong(), (32, 32), 3, 0.5, 0.25)(noise(2), torch_rng(0))
