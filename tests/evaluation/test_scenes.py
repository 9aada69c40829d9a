"""Images with boxes and masks from four kinds of sources."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from fedssl.errors import DataError
from fedssl.evaluation.coco import decode, encode
from fedssl.evaluation.options import DetectionConfig
from fedssl.evaluation.scene_sets import load
from fedssl.evaluation.scenes import box_of
from fedssl.evaluation.shapes import KINDS, draw, outline, picture

# --- COCO -----------------------------------------------------------------------------------------


@pytest.fixture
def coco(tmp_path):
    """Two images of 12×10 pixels: one with a polygon and a crowd, one without objects."""
    (tmp_path / "photos").mkdir()
    for number in (7, 9):
        pixels = np.full((10, 12, 3), number, np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{number}.png")
    known = {
        "images": [{"id": n, "file_name": f"{n}.png", "height": 10, "width": 12} for n in (7, 9)],
        "categories": [{"id": 90, "name": "brush"}, {"id": 3, "name": "car"}],
        "annotations": [
            {"image_id": 7, "category_id": 90, "bbox": [2, 3, 4, 5], "iscrowd": 0}
            | {"segmentation": [[2, 3, 6, 3, 6, 8, 2, 8]]},
            {"image_id": 7, "category_id": 3, "bbox": [0, 0, 1, 2], "iscrowd": 1}
            | {"segmentation": {"size": [10, 12], "counts": [0, 2, 118]}},
            {"image_id": 7, "category_id": 3, "bbox": [5, 5, 0, 3], "segmentation": [[5, 5, 5, 8, 5, 6]]},
        ],
    }
    (tmp_path / "objects.json").write_text(json.dumps(known))
    return tmp_path, known


def config(folder, **options):
    given = {"data": "coco", "root": str(folder), "images": "photos", "annotations": "objects.json"}
    given |= {"test_images": "photos", "test_annotations": "objects.json"}
    return DetectionConfig(**given | options)


def test_coco_survives_a_round_trip(coco):
    train, test = load(config(coco[0]))
    assert (len(train), len(test), train.side) == (2, 2, 10)
    assert train.classes == ("car", "brush")  # by id
    first, empty = train[0], train[1]
    assert first.image.shape == (10, 12, 3)
    assert (first.image == 7).all()
    assert first.boxes.tolist() == [[2, 3, 6, 8], [0, 0, 1, 2]]  # what has no area is left out
    assert first.labels.tolist() == [2, 1]
    assert first.crowd.tolist() == [False, True]
    square = np.zeros((10, 12), dtype=bool)
    square[3:8, 2:6] = True
    np.testing.assert_array_equal(first.masks[0].numpy(), square)
    assert first.masks[1].nonzero().tolist() == [[0, 0], [1, 0]]  # run lengths go down the columns
    assert empty.boxes.shape == (0, 4)
    assert empty.masks.shape == (0, 10, 12)


def test_annotations_without_outlines_have_no_masks(coco):
    folder, known = coco
    del known["annotations"][0]["segmentation"]
    (folder / "objects.json").write_text(json.dumps(known))
    train, _ = load(config(folder))
    assert not train.has_masks
    assert train[0].masks is None


def test_without_test_annotations_some_images_are_split_off(coco):
    train, test = load(config(coco[0], test_annotations="", test_fraction=0.5))
    assert sorted([*train.indices, *test.indices]) == [0, 1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"root": "/nowhere"}, "coco needs a folder: detection.root"),
        ({"root": ""}, "coco needs a folder: detection.root"),
        ({"annotations": "none.json"}, r"no annotations .*none\.json"),
        ({"annotations": "photos/7.png"}, r"7\.png"),
        ({"annotations": "list.json"}, "not in COCO's format: KeyError 'categories'"),
    ],
)
def test_bad_coco_is_named(coco, options, said):
    (coco[0] / "list.json").write_text("{}")
    with pytest.raises(DataError, match=said):
        load(config(coco[0], **options))


def test_a_missing_image_is_named(coco):
    (coco[0] / "photos" / "7.png").unlink()
    train, _ = load(config(coco[0]))
    with pytest.raises(DataError, match=r"7\.png cannot be read"):
        train[0]


def test_masks_survive_encoding():
    mask = np.random.default_rng(0).random((9, 14)) < 0.5
    np.testing.assert_array_equal(decode(encode(mask), 9, 14), mask)


# --- PennFudan ------------------------------------------------------------------------------------


@pytest.fixture
def people(tmp_path):
    (tmp_path / "PNGImages").mkdir()
    (tmp_path / "PedMasks").mkdir()
    for number in range(5):
        Image.fromarray(np.full((8, 6, 3), number, np.uint8)).save(tmp_path / "PNGImages" / f"P{number}.png")
        instances = np.zeros((8, 6), np.uint8)
        instances[1:4, 2:5] = 1
        instances[5:7, 0:1] = 2
        Image.fromarray(instances).save(tmp_path / "PedMasks" / f"P{number}_mask.png")
    return tmp_path


def test_a_folder_next_to_other_images_is_found(people):
    config = DetectionConfig(data="pennfudan", root=people.name)
    for beside in (people.parent / "imagenet100", people.parent):
        assert len(load(config, str(beside))[0]) == 4


def test_people_and_their_masks(people):
    train, test = load(DetectionConfig(data="pennfudan", root=str(people)))
    assert (len(train), len(test)) == (4, 1)
    own = train[0]
    assert own.boxes.tolist() == [[2, 1, 5, 4], [0, 5, 1, 7]]
    assert own.labels.tolist() == [1, 1]
    assert own.masks.sum((1, 2)).tolist() == [9, 2]
    assert int(own.image[0, 0, 0]) == train.indices[0]


def test_bad_masks_are_named(people):
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(people / "PedMasks" / "P0_mask.png")
    train, _ = load(DetectionConfig(data="pennfudan", root=str(people)))
    with pytest.raises(DataError, match=r"P0_mask\.png is \(3, 3\), but its image is \(8, 6\)"):
        train.read(0)
    for file in (people / "PedMasks").glob("*"):
        file.unlink()
    with pytest.raises(DataError, match="no image in PNGImages has a mask"):
        load(DetectionConfig(data="pennfudan", root=str(people)))


# --- npz ------------------------------------------------------------------------------------------


def save(path, **changes):
    arrays = {
        "x": np.zeros((3, 6, 8, 3), np.uint8),
        "boxes": np.array([[0, 0, 2, 2], [1, 1, 4, 5], [2, 2, 3, 3]], np.float32),
        "box_img": np.array([2, 0, 2]),
        "box_y": np.array([1, 0, 0]),
        "classes": np.array(["red", "white"]),
    } | changes
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})
    return str(path)


def test_boxes_of_an_npz(tmp_path):
    root = save(tmp_path / "cells_train.npz")
    save(tmp_path / "cells_test.npz", x=np.zeros((4, 6, 8, 3), np.uint8))
    train, test = load(DetectionConfig(data="npz", root=root))
    assert (train.name, len(train), len(test), train.has_masks) == ("cells", 3, 4, False)
    assert train[2].boxes.tolist() == [[0, 0, 2, 2], [2, 2, 3, 3]]
    assert train[2].labels.tolist() == [2, 1]
    assert train[1].boxes.shape == (0, 4)
    assert train[0].masks is None


def test_a_bare_name_is_searched_next_to_other_images(tmp_path):
    save(tmp_path / "cells_train.npz")
    config = DetectionConfig(data="npz", root="cells_train.npz", test_fraction=0.3)
    for beside in (tmp_path / "cifar10_train.npz", tmp_path):
        train, test = load(config, str(beside))
        assert (len(train), len(test)) == (2, 1)
    for options in ({}, {"root": "cells_train.npz"}, {"root": str(tmp_path)}):
        with pytest.raises(DataError, match=r"npz needs a file: detection\.root="):
            load(DetectionConfig(data="npz", **options))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"boxes": None}, "has no `boxes`"),
        ({"x": np.zeros((3, 6, 8), np.uint8)}, "must be uint8 N×H×W×C"),
        ({"x": np.zeros((3, 6, 8, 3))}, "`x` must be uint8"),
        ({"box_y": np.array([0, 1])}, "do not fit"),
        ({"box_img": np.array([0, 1, 3])}, "`box_img` runs from 0 to 3, of 3"),
        ({"box_y": np.array([0, 1, -1])}, "`box_y` runs from -1 to 1, of 2"),
    ],
)
def test_bad_boxes_are_named(tmp_path, changes, said):
    with pytest.raises(DataError, match=said):
        load(DetectionConfig(data="npz", root=save(tmp_path / "a.npz", **changes)))


def test_a_file_that_is_not_npz_is_named(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(DataError, match=r"a\.npz cannot be read"):
        load(DetectionConfig(data="npz", root=str(tmp_path / "a.npz")))


def test_limits_are_seeded_and_nested(tmp_path):
    root = save(tmp_path / "a.npz", x=np.zeros((40, 6, 8, 3), np.uint8))
    drawn = {
        limit: set(load(DetectionConfig(data="npz", root=root, limit=limit))[0].indices)
        for limit in (4, 10, 0)
    }
    assert [len(each) for each in drawn.values()] == [4, 10, 32]
    assert drawn[4] < drawn[10] < drawn[0]


# --- shapes ---------------------------------------------------------------------------------------


def test_synthetic_boxes_match_their_masks():
    scenes = draw(20, 64, "train")
    assert scenes.classes == KINDS
    objects = 0
    for place in range(20):
        own = scenes[place]
        assert own.image.shape == (64, 64, 3)
        for box, mask in zip(own.boxes.tolist(), own.masks, strict=True):
            assert tuple(box) == box_of(mask.numpy())
            objects += 1
        assert int(own.masks.sum(0).max()) <= 1  # what is hidden belongs to what hides it
    assert 20 <= objects <= 80


def test_synthetic_images_do_not_depend_on_their_number():
    few, many = draw(2, 48, "train"), draw(5, 48, "train")
    assert all(torch.equal(few[place].image, many[place].image) for place in range(2))
    assert not torch.equal(few[0].image, few[1].image)
    assert not torch.equal(few[0].image, draw(1, 48, "test")[0].image)


@pytest.mark.parametrize(("kind", "area"), [("circle", np.pi * 0.8), ("square", 1.6**2), ("triangle", 1.299)])
def test_outlines_have_the_area_of_their_names_at_any_angle(kind, area):
    grid = np.linspace(-1.5, 1.5, 601)
    x, y = np.meshgrid(grid, grid)
    for angle in (0.0, 0.7, 2.5):
        inside = outline(KINDS.index(kind), x, y, angle)
        assert inside.mean() * 9.0 == pytest.approx(area, rel=0.02)


def test_objects_differ_from_the_background():
    drawn = picture(64, np.random.default_rng(3))
    for mask in drawn.masks:
        inside = drawn.image[mask].mean(axis=0)
        assert np.abs(drawn.image.reshape(-1, 3).mean(axis=0) - inside).max() > 5


def test_as_many_are_drawn_as_asked():
    train, test = load(DetectionConfig(limit=3, test_limit=2, size=40))
    assert (len(train), len(test), train.side, train.has_masks) == (3, 2, 40, True)
