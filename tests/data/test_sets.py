"""What every data set goes through: checks, test split, limit, channels, size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedssl.data import DATASETS, sets
from fedssl.data.images import ImageSet
from fedssl.data.options import DataConfig
from fedssl.errors import ConfigError, DataError


def images(
    labels: list[int] | None, size: tuple[int, int] = (4, 4), channels: int = 1, **more: Any
) -> ImageSet:
    """Image i is filled with i, so that a subset shows which images it has."""
    count = len(labels) if labels is not None else more.pop("count")
    x = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, *size, channels)
    return ImageSet(x, None if labels is None else torch.tensor(labels), name="made", **more)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`load(train, test, **keys)` as if a loader had returned these sets."""

    def run(train: Any, test: Any = None, seed: int = 0, **keys: Any) -> tuple[ImageSet, ImageSet | None]:
        monkeypatch.setitem(DATASETS._entries, "made", lambda config, progress: (train, test))
        return sets.load(DataConfig(name="made", **keys), seed)

    return run


def ids(part: ImageSet) -> list[int]:
    return part.x[:, 0, 0, 0].tolist()


def test_test_split_is_stratified_complete_and_the_same_for_every_seed(load: Any) -> None:
    whole = images([0] * 50 + [1] * 25 + [2] * 10)
    train, test = load(whole, seed=0)
    assert test.y.bincount().tolist() == [10, 5, 2]
    assert sorted(ids(train) + ids(test)) == list(range(85))
    again, test_again = load(whole, seed=7)
    assert ids(test) == ids(test_again)
    assert ids(train) == ids(again)


def test_test_split_takes_part_of_every_style(load: Any) -> None:
    domain = torch.tensor([0, 1] * 20)
    _, test = load(images([0] * 20 + [1] * 20, domain=domain), test_fraction=0.1)
    assert test.y.bincount().tolist() == [2, 2]
    assert test.domain.bincount().tolist() == [2, 2]


def test_test_split_leaves_every_class_an_image_to_train_on(load: Any) -> None:
    train, test = load(images([0, 1, 2, 3, 3, 3]), test_fraction=0.9)
    assert train.y.unique().tolist() == [0, 1, 2, 3]
    assert test.y.tolist() == [3, 3]


def test_no_test_split_of_unlabeled_or_too_few_images(load: Any) -> None:
    train, test = load(images(None, count=30))
    assert (len(train), test) == (30, None)
    train, test = load(images([0, 1]))
    assert (len(train), test) == (2, None)
    assert "2 images are too few" in train.warnings[0]


def test_own_test_split_is_kept(load: Any) -> None:
    train, test = load(images([0] * 10), images([0, 2]))
    assert (len(train), test.y.tolist()) == (10, [0, 2])
    assert train.classes == test.classes == ("0", "1", "2")


def test_warnings_of_the_whole_set_appear_once(load: Any) -> None:
    train, test = load(images([0] * 10, warnings=("look",)))
    assert (train.warnings, test.warnings) == (("look",), ())


def test_limit_is_stratified_seeded_and_leaves_the_test_alone(load: Any) -> None:
    whole, own_test = images([0] * 60 + [1] * 30 + [2] * 10), images([0] * 9)
    train, test = load(whole, own_test, limit=20)
    assert train.y.bincount().tolist() == [12, 6, 2]
    assert len(test) == 9
    assert ids(load(whole, own_test, limit=20)[0]) == ids(train)
    assert ids(load(whole, own_test, limit=20, seed=1)[0]) != ids(train)
    assert ids(load(whole, own_test, limit=100)[0]) == ids(whole)


@pytest.mark.parametrize("limit", [1, 2, 5, 7, 33, 98])
def test_limit_is_met_exactly_and_no_class_is_off_by_one_image(load: Any, limit: int) -> None:
    counts = np.array([41, 31, 17, 9, 1])
    train, _ = load(images(np.repeat(np.arange(5), counts).tolist()), images([0]), limit=limit)
    assert len(set(ids(train))) == limit
    taken = np.bincount(train.y.numpy(), minlength=5)
    assert (np.abs(taken - limit * counts / 99) < 1).all()


def test_small_limits_do_not_always_pick_the_first_classes(load: Any) -> None:
    whole, own_test = images(list(range(10)) * 3), images([0])
    first = {load(whole, own_test, limit=1, seed=seed)[0].y.item() for seed in range(20)}
    assert len(first) > 3


def test_limit_of_unlabeled_images_is_uniform(load: Any) -> None:
    whole = images(None, count=10)
    drawn = np.zeros(10)
    for seed in range(400):
        drawn[ids(load(whole, limit=3, seed=seed)[0])] += 1
    assert np.abs(drawn / 400 - 0.3).max() < 0.1  # standard error 0.023


def test_a_limit_beyond_the_set_names_both_numbers(load: Any) -> None:
    with pytest.raises(DataError, match=r"limit=81, but made has only 80 training images"):
        load(images([0] * 100), limit=81)


def test_gray_conversion_equals_pillow(load: Any) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), dtype=np.uint8)
    train, _ = load(ImageSet(torch.from_numpy(pixels)), channels=1)
    expected = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in pixels])
    assert np.array_equal(train.x[..., 0].numpy(), expected)


def test_color_of_gray_images_repeats_them(load: Any) -> None:
    train, test = load(images([0, 1] * 5), channels=3)
    for part in (train, test):
        assert part.channels == 3
        assert (part.x == part.x[..., :1]).all()
        assert part.x.is_contiguous()


@pytest.mark.parametrize("size", [7, 12, 40])
def test_resize_agrees_with_pillow_within_rounding(
    load: Any, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sets, "STEP_BYTES", 2 * 24 * 16 * 3)  # two images at a time, and one left over
    pixels = np.random.default_rng(0).integers(0, 256, (5, 24, 16, 3), dtype=np.uint8)
    train, _ = load(ImageSet(torch.from_numpy(pixels)), size=size)
    pictures = [Image.fromarray(image) for image in pixels]
    resized = [np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR)) for picture in pictures]
    difference = train.x.int() - torch.from_numpy(np.stack(resized)).int()
    assert train.x.shape == (5, size, size, 3)
    assert difference.abs().max() <= 1


def test_size_and_channels_together_do_not_depend_on_the_order(load: Any) -> None:
    gray = images(None, count=3, size=(6, 6))
    both, _ = load(gray, size=4, channels=3)
    one, _ = load(gray, size=4)
    assert torch.equal(both.x, one.x.repeat(1, 1, 1, 3))


def test_images_of_the_right_size_are_not_changed(load: Any) -> None:
    pixels = torch.randint(
        0, 256, (5, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    train, _ = load(ImageSet(pixels), size=8, channels=3)
    assert torch.equal(train.x, pixels)


def test_progress_reaches_the_end() -> None:
    calls: list[tuple[int, int, str]] = []
    sets.resize(images([0] * 9).x, 2, lambda done, total, what: calls.append((done, total, what)))
    assert calls[-1] == (9, 9, "resizing to 2×2")


def test_train_and_test_of_different_shape_are_an_error_unless_made_alike(load: Any) -> None:
    train, test = images([0] * 4, size=(4, 4)), images([0] * 4, size=(6, 6), channels=3)
    with pytest.raises(DataError, match=r"train images are 4×4×1, test images 6×6×3"):
        load(train, test)
    assert load(train, test, size=5, channels=3)[1].x.shape == (4, 5, 5, 3)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (ImageSet(torch.zeros(2, 4, 4, 1), name="n"), "n train: pixels must be uint8 .*not float32"),
        (ImageSet(torch.zeros(2, 4, 4, dtype=torch.uint8), name="n"), r"not \(2, 4, 4\)"),
        (ImageSet(torch.zeros(2, 4, 4, 17, dtype=torch.uint8), name="n"), r"not \(2, 4, 4, 17\)"),
        (ImageSet(torch.zeros(0, 4, 4, 1, dtype=torch.uint8), name="n"), "no images"),
        (images([0, -1]), "are from -1 to 0"),
        (images([0, 3], classes=("a", "b", "c")), r"class 3, but only 3 names \(0..2\)"),
        (images([0, 0], domain=torch.tensor([0, 2]), domains=("x",)), r"style 2, but only 1 names"),
        (
            ImageSet(torch.zeros(2, 4, 4, 1, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)),
            "2 images, but",
        ),
        (ImageSet(torch.zeros(2, 4, 4, 1, dtype=torch.uint8), torch.zeros(2)), "must be int64"),
    ],
)
def test_bad_sets_are_errors_with_numbers(load: Any, bad: ImageSet, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(bad)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.array([0.0, np.nan]), "labels must be whole numbers, but label 1 is nan"),
        (np.array([0.0, np.inf]), "labels must be whole numbers, but label 1 is inf"),
        (np.array([0.5, 1.0]), "labels must be whole numbers, but label 0 is 0.5"),
        (np.array(["a", "b"]), "labels must be whole numbers, not <U1"),
        (np.array([0, 1, 2]), r"2 images, but labels of shape \(3,\)"),
        (np.array([0, 10**9]), "labels must be from 0 to classes - 1, but are from 0 to 1000000000"),
    ],
)
def test_labels_that_are_not_class_numbers(values: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=f"here: {message}"):
        sets.to_labels(values, 2, "here")


def test_whole_floats_are_labels() -> None:
    assert sets.to_labels(np.array([2.0, 0.0]), 2, "here").tolist() == [2, 0]


def test_split_names_are_refused_without_splits() -> None:
    with pytest.raises(ConfigError, match="digits has no splits"):
        sets.load(DataConfig(name="digits", split="unlabeled"), 0)


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean digits"):
        sets.load(DataConfig(name="digit"), 0)


def test_holdout_is_stratified_seeded_and_covers_every_class() -> None:
    whole: Any = images([0] * 100 + [1] * 50 + [2] * 3)
    pretrain, labeled = sets.split_holdout(whole, 0.1, seed=0)
    assert sorted([*pretrain, *labeled]) == list(range(153))
    assert whole.subset(labeled).y.bincount().tolist() == [10, 5, 1]
    assert np.array_equal(labeled, sets.split_holdout(whole, 0.1, seed=0)[1])
    assert not np.array_equal(labeled, sets.split_holdout(whole, 0.1, seed=1)[1])
    assert sets.split_holdout(whole, 0.001, seed=0)[1].shape == (3,)


def test_holdout_needs_labels_and_a_share() -> None:
    with pytest.raises(DataError, match="needs labels"):
        sets.split_holdout(images(None, count=4), 0.5, 0)
    with pytest.raises(ConfigError, match="holdout must be between 0 and 1, not 0"):
        sets.split_holdout(images([0, 1]), 0, 0)
