"""Detection: scores by hand, training against what it must change, and the whole protocol on a tiny set."""

import json

import numpy as np
import pytest
import torch
from tests.small import SMALL, small_run

import fedssl
from fedssl.cli import main
from fedssl.errors import ConfigError, DataError, RunError
from fedssl.evaluation.detection import (
    Tuning,
    average_precision,
    batches,
    fine_tune,
    flipped,
    learning_rate,
    to_input,
    to_target,
)
from fedssl.evaluation.detector import Maps, build_detector
from fedssl.evaluation.options import DetectionConfig
from fedssl.evaluation.scenes import Scenes, scene
from fedssl.evaluation.shapes import draw
from fedssl.models.encoders import build_encoder
from fedssl.models.options import ModelConfig

TINY = {
    "detection.limit": 4,
    "detection.test_limit": 2,
    "detection.size": 32,
    "detection.width": 8,
    "detection.regions": 8,
    "detection.steps": 2,
    "detection.batch_size": 2,
}
CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


def tuning(**options):
    config = DetectionConfig(**{key.split(".")[1]: value for key, value in TINY.items()} | options)
    return Tuning(config, channels=3, mean=0.5, std=0.25, seed=0, device=CPU)


def encoder(name="resnet8", size=32, **options):
    torch.manual_seed(0)
    return build_encoder(ModelConfig(encoder=name, **{"width": 4, **options}), (size, size), 3).module


# --- average precision ----------------------------------------------------------------------------


def squares(*objects, masks=True, crowd=()):
    """Scenes of 20×20 pixels; each object is (image, x, y, side, label)."""
    count = max(each[0] for each in objects) + 1

    def read(index):
        own = [each for each in objects if each[0] == index]
        boxes = np.array([[x, y, x + side, y + side] for _, x, y, side, _ in own])
        painted = []
        for _, x, y, side, _ in own:
            mask = np.zeros((20, 20), dtype=bool)
            mask[y : y + side, x : x + side] = True
            painted.append(mask)
        labels = np.array([label for *_, label in own])
        ignored = np.array([each in crowd for each in own], dtype=bool)
        return scene(np.zeros((20, 20, 3), np.uint8), boxes, labels, painted if masks else None, ignored)

    return Scenes("squares", ("a", "b"), masks, ((20, 20),) * count, read, tuple(range(count)))


def found(truth, scores=None):
    """Predictions equal to the ground truth."""
    for place in range(len(truth)):
        own = truth[place]
        given = torch.ones(len(own.labels)) if scores is None else torch.tensor(scores[place])
        predicted = {"boxes": own.boxes, "labels": own.labels, "scores": given}
        yield predicted | ({} if own.masks is None else {"masks": own.masks})


def test_perfect_predictions_score_one():
    truth = squares((0, 2, 2, 6, 1), (0, 10, 10, 8, 2), (1, 5, 5, 4, 1))
    numbers = average_precision(found(truth), truth)
    assert numbers["box"] == {"ap": 1.0, "ap50": 1.0, "ap75": 1.0}
    assert numbers["mask"] == {"ap": 1.0, "ap50": 1.0, "ap75": 1.0}
    assert numbers["per_class"] == [
        {"class": "a", "box": 1.0, "mask": 1.0},
        {"class": "b", "box": 1.0, "mask": 1.0},
    ]


def test_no_predictions_score_zero():
    truth = squares((0, 2, 2, 6, 1))
    nothing = {
        "boxes": torch.zeros(0, 4),
        "labels": torch.zeros(0, dtype=torch.int64),
        "scores": torch.zeros(0),
    }
    nothing["masks"] = torch.zeros(0, 20, 20, dtype=torch.bool)
    numbers = average_precision([nothing], truth)
    assert numbers["box"]["ap"] == numbers["mask"]["ap"] == 0.0


def test_half_of_the_objects_found():
    """One of two objects, without a false alarm: precision 1 up to recall ½, 51 of COCO's 101 points."""
    truth = squares((0, 2, 2, 6, 1), (1, 5, 5, 4, 1), masks=False)
    predicted = list(found(truth))
    predicted[1] = {name: value[:0] for name, value in predicted[1].items()}
    numbers = average_precision(predicted, truth)
    assert numbers["box"]["ap"] == pytest.approx(51 / 101)
    assert "mask" not in numbers


def test_a_shifted_box_counts_up_to_its_overlap():
    """10×10 moved by one pixel: IoU 90/110 = 0.818, so it counts at 0.5 … 0.8, which are 7 of 10."""
    truth = squares((0, 2, 2, 10, 1))
    moved = squares((0, 3, 2, 10, 1))
    numbers = average_precision(found(moved), truth)
    assert numbers["box"]["ap"] == pytest.approx(0.7)
    assert (numbers["box"]["ap75"], numbers["mask"]["ap"]) == (1.0, pytest.approx(0.7))


def test_the_right_box_with_a_wrong_mask():
    truth = squares((0, 2, 2, 10, 1))
    predicted = next(found(truth))
    predicted["masks"] = predicted["masks"].clone()
    predicted["masks"][:, :7] = False  # the lower half is left: IoU ½
    numbers = average_precision([predicted], truth)
    assert numbers["box"]["ap"] == 1.0
    assert numbers["mask"]["ap"] == pytest.approx(0.1)  # at 0.5 only


def test_crowds_need_not_be_found_and_are_not_wrong_to_find():
    crowd = (0, 10, 10, 8, 1)
    truth = squares((0, 2, 2, 6, 1), crowd, crowd=(crowd,))
    predicted = next(found(truth))
    assert average_precision([predicted], truth)["box"]["ap"] == 1.0
    without = {name: value[:1] for name, value in predicted.items()}
    assert average_precision([without], truth)["box"]["ap"] == 1.0
    assert len(to_target(truth[0], CPU)["boxes"]) == 1  # and none is trained on


def test_a_test_set_without_objects_is_an_error():
    truth = squares((0, 2, 2, 6, 1), (1, 2, 2, 6, 1)).subset([0])
    empty = Scenes(
        "empty", ("a",), False, ((20, 20),), lambda _: scene(np.zeros((20, 20, 3), np.uint8), [], []), (0,)
    )
    predicted = {name: value for name, value in next(found(truth)).items() if name != "masks"}
    with pytest.raises(DataError, match="empty: the 1 test images contain no objects"):
        average_precision([predicted], empty)


# --- pieces of training ---------------------------------------------------------------------------


def test_a_flip_mirrors_image_boxes_and_masks_alike():
    original = draw(1, 40, "train")[0]
    mirror = flipped(original, 1.0, torch.Generator())
    assert torch.equal(mirror.image, original.image.flip(1))
    for box, mask in zip(mirror.boxes.int().tolist(), mirror.masks, strict=True):
        rows, columns = mask.any(1).nonzero().flatten(), mask.any(0).nonzero().flatten()
        assert box == [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
    assert flipped(original, 0.0, torch.Generator()) is original
    again = flipped(mirror, 1.0, torch.Generator())
    assert torch.equal(again.boxes, original.boxes)
    assert torch.equal(again.masks, original.masks)


def test_the_schedule_is_the_papers():
    """1×: 90,000 steps at 0.02, warm-up of 1,000, a tenth after 60,000 and 80,000."""
    config = DetectionConfig(steps=90_000, lr=0.02)
    assert learning_rate(config, 0) == pytest.approx(0.02 / 1001)
    assert learning_rate(config, 1000) == learning_rate(config, 59_999) == 0.02
    assert learning_rate(config, 60_000) == learning_rate(config, 79_999) == pytest.approx(0.002)
    assert learning_rate(config, 80_000) == pytest.approx(0.0002)


def test_batches_cover_all_scenes_before_repeating():
    config = DetectionConfig(steps=6, batch_size=4)
    drawn = list(batches(6, config, seed=0))
    assert [len(batch) for batch in drawn] == [4] * 6
    flat = [place for batch in drawn for place in batch]
    for start in range(0, 24, 6):
        assert sorted(flat[start : start + 6]) == list(range(6))
    assert drawn == list(batches(6, config, seed=0))
    assert drawn != list(batches(6, config, seed=1))
    assert len(next(batches(1, config, seed=0))) == 4  # one image makes a batch, too


def test_pixels_come_in_the_encoders_channels():
    own = draw(1, 40, "train")[0]
    color, gray = to_input(own, 3, CPU), to_input(own, 1, CPU)
    assert color.shape == (3, 40, 40)
    assert gray.shape == (1, 40, 40)
    torch.testing.assert_close(color * 255, own.image.permute(2, 0, 1).float())
    weights = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    torch.testing.assert_close(gray[0], (color * weights).sum(0), rtol=0, atol=0.6 / 255)


# --- the detector ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "size", "expected"),
    [
        ("resnet8", {"stem_stride": 1}, 32, [(2, 8), (4, 16)]),
        ("resnet8", {"stem_stride": 2}, 32, [(2, 4), (4, 8), (8, 16)]),
        ("resnet18", {"stem_stride": 2}, 32, [(2, 4), (4, 8), (8, 16), (16, 32)]),
        ("timm:resnet18", {}, 128, [(4, 64), (8, 128), (16, 256), (32, 512)]),
        ("timm:mobilenetv3_small_050", {}, 128, [(4, 8), (8, 16), (16, 24), (32, 288)]),
    ],
)
def test_levels_are_the_encoders_stages(name, options, size, expected):
    levels = Maps(encoder(name, size, **options)).levels(3)
    assert [(level.stride, level.channels) for level in levels] == expected


def test_the_last_map_is_what_the_encoder_pools():
    network = encoder()
    maps, images = Maps(network), torch.rand(2, 3, 40, 48)
    network.eval()
    with torch.no_grad():
        torch.testing.assert_close(maps(images)[-1].mean((2, 3)), network(images))
        assert len(maps(images)) == 3  # nothing is left over from the call before


@pytest.mark.parametrize("name", ["vit_tiny", "timm:vit_tiny_patch16_224"])
def test_a_vision_transformer_is_refused_with_a_reason(name):
    with pytest.raises(ConfigError, match="detection needs"):
        Maps(encoder(name, 32 if name == "vit_tiny" else 128, patch=16)).levels(3)


def test_an_encoder_without_maps_is_refused_with_a_reason():
    with pytest.raises(ConfigError, match="which Flatten does not provide"):
        Maps(torch.nn.Flatten())


def test_the_detector_begins_with_the_encoders_weights_and_leaves_them_alone():
    network, scenes, how = encoder(), draw(4, 32, "train"), tuning()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    detector = build_detector(network, scenes, how.config, 3, how.mean, how.std)
    inner = detector.backbone.maps.encoder.state_dict()
    assert all(torch.equal(inner[name], value) for name, value in before.items())
    fine_tune(network, scenes, draw(2, 32, "test"), how)
    assert all(torch.equal(network.state_dict()[name], value) for name, value in before.items())


def test_training_changes_the_encoder_too_and_is_seeded():
    from fedssl.evaluation.detection import train

    network, scenes, how = encoder(), draw(4, 32, "train"), tuning()

    def trained():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            detector = build_detector(network, scenes, how.config, 3, how.mean, how.std)
            train(detector, scenes, how)
        return detector.state_dict()

    one, two = trained(), trained()
    assert all(torch.equal(one[name], two[name]) for name in one)
    for name, value in network.named_parameters():
        assert not torch.equal(one[f"backbone.maps.encoder.{name}"], value), name


def test_box_only_sets_have_no_mask_head():
    scenes = squares((0, 2, 2, 6, 1), masks=False)
    detector = build_detector(encoder(), scenes, tuning().config, 3, 0.5, 0.25)
    assert type(detector).__name__ == "FasterRCNN"
    assert not any("mask" in name for name in detector.state_dict())


def test_a_detector_learns_one_picture():
    """Trained and tested on the same picture, it finds every object with the right class and outline."""
    scenes = draw(1, 48, "train")
    how = tuning(size=48, width=16, regions=16, steps=60, batch_size=2, optimizer="adamw", lr=2e-3)
    numbers = fine_tune(encoder(width=8, stem_stride=2), scenes, scenes, how)
    assert numbers["box"]["ap50"] > 0.5
    assert numbers["mask"]["ap50"] > 0.5


def test_a_loss_that_is_not_finite_is_an_error():
    with pytest.raises(RunError, match=r"smaller detection\.lr"):
        fine_tune(encoder(), draw(4, 32, "train"), draw(2, 32, "test"), tuning(lr=1e30, steps=5, clip=0))


# --- the protocol ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("runs") / "a", rounds=1)


def test_by_command(run, capsys):
    words = [f"{key}={value}" for key, value in TINY.items()]
    assert main(["eval", str(run.path), "--protocol", "detection", *words]) == 0
    shown = " ".join(capsys.readouterr().out.split())  # lines may be wrapped
    for part in ("shapes: 4 labeled of 4 train, 2 test", "box", "mask", "from scratch", "encoder: global"):
        assert part in shown
    stored = json.loads((run.path / "evaluations.jsonl").read_text().splitlines()[-1])
    assert stored["protocol"] == "detection"
    for kind in ("box", "mask"):
        assert 0 <= stored[kind]["ap"] <= 1
        assert 0 <= stored["untrained"][kind]["ap"] <= 1
    assert stored["overrides"]["detection.steps"] == 2


def test_few_labels(run):
    found = run.probe("detection", **{**TINY, "detection.labels": 0.5})
    assert found["images"] == "shapes: 2 labeled of 4 train, 2 test"


def test_bare_file_names_are_searched_next_to_the_training_images(tmp_path):
    """A bare file name is searched in the folder of the run's images."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 4), ("test", 2)):
        boxes = np.tile([4.0, 6.0, 20.0, 24.0], (count, 1))
        np.savez(
            tmp_path / f"cells_{split}.npz",
            x=rng.integers(0, 255, (count, 32, 40, 3), dtype=np.uint8),
            boxes=boxes,
            box_img=np.arange(count),
            box_y=np.arange(count) % 2,
            classes=np.array(["red", "white"]),
        )
    pixels = rng.integers(0, 255, (40, 8, 8, 1), dtype=np.uint8)
    np.savez(tmp_path / "other_train.npz", x=pixels, y=np.arange(40) % 2)
    data = {"name": "npz", "root": str(tmp_path / "other_train.npz")}
    settings = {**SMALL, "data": data, "partition": {"scheme": "iid", "clients": 2}, "rounds": 1}
    run = fedssl.run(settings, out=tmp_path / "run", quiet=True)
    keys = {key: value for key, value in TINY.items() if key != "detection.size"}
    found = run.probe("detection", **keys, **{"detection.data": "npz", "detection.root": "cells_train.npz"})
    assert found["images"] == "cells: 4 labeled of 4 train, 2 test"
    assert "mask" not in found
    assert "mask" not in found["untrained"]
    with pytest.raises(DataError, match=r"detection\.root='nowhere_train\.npz' does not exist"):
        run.probe("detection", **{"detection.data": "npz", "detection.root": "nowhere_train.npz"})


def test_both_numbers_of_a_recipe_come_from_one_evaluation(run):
    from fedssl.tables.measure import read_number
    from fedssl.tables.table import Measure

    config = {"detection": {key.split(".")[1]: value for key, value in TINY.items()} | {"steps": 1}}
    box = read_number(run.path, Measure(kind="detection", config=config))
    lines = (run.path / "evaluations.jsonl").read_text().splitlines()
    mask = read_number(run.path, Measure(kind="segmentation", config=config))
    assert (run.path / "evaluations.jsonl").read_text().splitlines() == lines
    stored = json.loads(lines[-1])
    assert (box.number, mask.number) == (100 * stored["box"]["ap"], 100 * stored["mask"]["ap"])
    assert mask.untrained == 100 * stored["untrained"]["mask"]["ap"]
