"""Federations by drawer, camera, country, writer, hospital and user, from small copies of the real files."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

import fedssl.data
from fedssl.data import sets
from fedssl.data.images import ImageSet
from fedssl.data.options import DataConfig
from fedssl.errors import DataError


def save(file: Path, value: int = 0) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (6, 6), value).save(file)


def write_csv(file: Path, rows: list[dict[str, object]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def load(name: str, root: Path, **keys: object) -> tuple[ImageSet, ImageSet | None]:
    return sets.load(DataConfig(name=name, root=str(root), **keys), seed=0)


def sites(images: ImageSet) -> dict[str, int]:
    assert images.domain is not None
    counts = Counter(images.domains[number] for number in images.domain.tolist())
    return dict(sorted(counts.items()))


def clients(images: ImageSet) -> list[list[int]]:
    """The first pixels of every client's images."""
    assert images.y is not None
    assert images.domain is not None
    parts = fedssl.data.partition(images.y.tolist(), "folder", domains=images.domain.tolist())
    return [images.x[part, 0, 0, 0].tolist() for part in parts]


def test_omniglot_by_drawer(tmp_path: Path) -> None:
    for alphabet, characters in {"Greek": 2, "Latin": 1}.items():
        for character in range(1, characters + 1):
            for drawer in (1, 2, 16, 17, 20):
                name = f"character{character:02}/{character:04}_{drawer:02}.png"
                save(tmp_path / "images_background" / alphabet / name, 10 * drawer + character)
    train, test = load("omniglot", tmp_path)
    assert sites(train) == {
        "Greek/01": 2, "Greek/02": 2, "Greek/16": 2, "Latin/01": 1, "Latin/02": 1, "Latin/16": 1
    }  # fmt: skip
    assert train.classes == ("Greek/character01", "Greek/character02", "Latin/character01")
    assert (train.channels, train.mirrored) == (1, False)
    assert clients(train) == [[11, 12], [21, 22], [161, 162], [11], [21], [161]]
    assert test is not None
    assert sites(test) == {"Greek/17": 2, "Greek/20": 2, "Latin/17": 1, "Latin/20": 1}


def test_office_caltech_by_camera(tmp_path: Path) -> None:
    published = {
        "amazon": ["back_pack", "mouse", "ruler"],
        "Caltech10": ["003.backpack", "computer-mouse", "laptop-101"],
        "dslr": ["back_pack", "mouse"],
        "webcam/images": ["back_pack", "mouse", "desk_chair"],
    }
    for place, classes in published.items():
        for name in classes:
            for number in range(5):
                save(tmp_path / place / name / f"{number}.jpg")
    train, test = load("office-caltech", tmp_path)
    assert train.classes == ("backpack", "mouse")
    assert test is not None
    assert train.domains == ("amazon", "caltech", "dslr", "webcam")
    assert sites(train) == dict.fromkeys(train.domains, 8)
    assert sites(test) == dict.fromkeys(train.domains, 2)


def test_covid_chestxray_by_country(tmp_path: Path) -> None:
    rows = []
    for number in range(40):
        rows.append({
            "patientid": number // 4,
            "finding": "Pneumonia/Viral/COVID-19" if number % 2 else "Pneumonia/Bacterial",
            "modality": "CT" if number == 39 else "X-ray",
            "location": "Hannover Medical School, Germany" if number < 20 else "Italy" if number < 36 else "",
            "folder": "images",
            "filename": f"{number}.png",
        })  # fmt: skip
        save(tmp_path / "images" / f"{number}.png", number)
    write_csv(tmp_path / "metadata.csv", rows)
    train, test = load("covid-chestxray", tmp_path)
    assert test is not None
    assert train.classes == ("COVID-19", "Pneumonia")
    assert set(train.domains) == {"Germany", "Italy", "unknown"}
    seen, unseen = ({pixel // 4 for pixel in each.x[:, 0, 0, 0].tolist()} for each in (train, test))
    assert not seen & unseen
    assert len(train) + len(test) == 39
    assert 8 <= len(test) <= 11  # a fifth of 39, in whole patients of 4 or 3 images
    assert 39 not in [*train.x[:, 0, 0, 0].tolist(), *test.x[:, 0, 0, 0].tolist()]


def test_femnist_by_writer(tmp_path: Path) -> None:
    def page(users: dict[str, list[int]]) -> str:
        data = {user: {"x": [[label / 61] * 784 for label in y], "y": y} for user, y in users.items()}
        return json.dumps({"users": list(users), "num_samples": [1], "user_data": data})

    for split, users in {"train": {"f1": [0, 61], "f0": [10]}, "test": {"f1": [36]}}.items():
        (tmp_path / split).mkdir()
        (tmp_path / split / "all_data_0.json").write_text(page(users))
    train, test = load("femnist", tmp_path)
    assert test is not None
    assert sites(train) == {"f0": 1, "f1": 2}
    assert clients(train) == [[42], [0, 255]]  # 10/61 and 61/61 of 255
    assert [train.classes[label] for label in (0, 10, 36, 61)] == ["0", "A", "a", "z"]
    assert (sites(test), test.domains) == ({"f1": 1}, ("f0", "f1"))
    assert train.x.shape == (3, 28, 28, 1)


def test_camelyon17_by_hospital(tmp_path: Path) -> None:
    rows = []
    for number in range(12):
        row = {"patient": number, "node": 3, "x_coord": 96 * number, "y_coord": 64, "tumor": number % 2}
        rows.append(row | {"center": number % 3, "split": int(number >= 9)})
        name = f"patient_{number:03}_node_3"
        save(tmp_path / "patches" / name / f"patch_{name}_x_{96 * number}_y_64.png", number)
    write_csv(tmp_path / "metadata.csv", rows)
    train, test = load("camelyon17", tmp_path)
    assert test is not None
    assert sites(train) == {"center 0": 3, "center 1": 3, "center 2": 3}
    assert clients(train) == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    assert test.x[:, 0, 0, 0].tolist() == [9, 10, 11]
    assert train.y is not None
    assert [train.classes[label] for label in train.y.tolist()][:2] == ["normal", "tumor"]


def test_inaturalist_by_user(tmp_path: Path) -> None:
    for split, users in {"train": ["ann", "bob", "ann"], "val": ["bob"]}.items():
        images = [
            {"id": number, "file_name": f"{split}/7/{number}.png", "rights_holder": user}
            for number, user in enumerate(users)
        ]
        for image in images:
            save(tmp_path / str(image["file_name"]), 50 * int(str(image["id"])))
        labels = [{"image_id": number, "category_id": 7 + number % 2} for number in range(len(users))]
        names = [{"id": 7, "name": "Aves"}, {"id": 8, "name": "Fungi"}]
        about = {"images": images, "annotations": labels, "categories": names}
        (tmp_path / f"{split}2018.json").write_text(json.dumps(about))
    train, test = load("inaturalist", tmp_path)
    assert sites(train) == {"ann": 2, "bob": 1}
    assert clients(train) == [[0, 100], [50]]
    assert test is not None
    assert (len(test), train.classes) == (1, ("Aves", "Fungi"))


NAMES = ("omniglot", "office-caltech", "covid-chestxray", "femnist", "camelyon17", "inaturalist")


@pytest.mark.parametrize("name", NAMES)
def test_folders_that_are_not_the_data_set(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"data.name={name} needs data.root"):
        load(name, tmp_path / "nothing")
    with pytest.raises(DataError, match=str(tmp_path)):
        load(name, tmp_path)


def test_other_columns_and_pages_are_named(tmp_path: Path) -> None:
    write_csv(tmp_path / "metadata.csv", [{"patient": 1, "node": 2}])
    with pytest.raises(DataError, match="no column 'x_coord'"):
        load("camelyon17", tmp_path)
    (tmp_path / "train2018.json").write_text("{}")
    with pytest.raises(DataError, match="no 'categories'"):
        load("inaturalist", tmp_path)
    data = {"users": ["a"], "user_data": {"a": {"x": [[2.0] * 784], "y": [1]}}}
    (tmp_path / "all_data").mkdir()
    (tmp_path / "all_data" / "0.json").write_text(json.dumps(data))
    with pytest.raises(DataError, match="writer a has no images of 28×28"):
        load("femnist", tmp_path)
