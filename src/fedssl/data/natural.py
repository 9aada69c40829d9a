"""Data sets with natural clients: the person, place or camera of each image is known.

The loaders read files as published and set the site of each image, so that `partition.scheme=folder` makes a
client of every drawer, camera, country, writer, hospital or user.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedssl.data.cache import Listing
from fedssl.data.decoding import SUFFIXES
from fedssl.data.files import Table, listings, number_names
from fedssl.data.images import ImageSet
from fedssl.data.manifest import need_columns, read_table
from fedssl.errors import DataError

if TYPE_CHECKING:
    from fedssl.data.options import DataConfig
    from fedssl.progress import Progress

Splits = tuple[Listing, Listing | None]

UNSEEN_DRAWERS = 16  # of the 20 of an alphabet, those after this one are the test split
CAMERAS = ("amazon", "caltech", "dslr", "webcam")
# What the classes of Caltech-256 are called in Office.
OFFICE_NAMES = {
    "touring bike": "bike",
    "back pack": "backpack",
    "computer keyboard": "keyboard",
    "computer monitor": "monitor",
    "computer mouse": "mouse",
    "coffee mug": "mug",
    "laptop computer": "laptop",
    "video projector": "projector",
}
FEMNIST_CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")


def omniglot(config: DataConfig, progress: Progress | None = None) -> Splits:
    """Omniglot by drawer: `images_background/ALPHABET/CHARACTER/NUMBER_DRAWER.png` (Lake et al. 2015).

    Every alphabet has 20 drawers. The last four are the test split and belong to no client.
    """
    root = _folder(config, "the folder with images_background")
    places = [root / name for name in ("images_background", "images_evaluation") if (root / name).is_dir()]
    files = [file for place in places or [root] for file in _images(place, "*/*/*")]
    drawers = [re.fullmatch(r"\d+_(\d+)", file.stem) for file in files]
    kept = [(file, int(found[1])) for file, found in zip(files, drawers, strict=True) if found]
    if not kept:
        raise DataError(f"{root} has no ALPHABET/CHARACTER/NUMBER_DRAWER.png, as in images_background")
    table = Table(
        [file for file, _ in kept],
        labels=[f"{file.parts[-3]}/{file.parts[-2]}" for file, _ in kept],
        sites=[f"{file.parts[-3]}/{drawer:02}" for file, drawer in kept],
        test=[drawer > UNSEEN_DRAWERS for _, drawer in kept],
        mirrored=False,
    )
    return listings(table, root, _gray(config), progress=progress)


def office_caltech(config: DataConfig, progress: Progress | None = None) -> Splits:
    """Office-Caltech by camera (Gong et al. 2012): `amazon/`, `caltech/`, `dslr/`, `webcam/`, each by class.

    The classes that all four have are kept, under the names of Office.
    """
    root = _folder(config, "the folder with amazon, caltech, dslr and webcam")
    places = {each.name.lower().removesuffix("10"): each for each in root.iterdir() if each.is_dir()}
    for camera in CAMERAS:
        if camera not in places:
            raise DataError(f"{root} has no folder {camera}")
    found = [
        (file, _office_class(file.parent.name), camera)
        for camera in CAMERAS
        for file in _images(places[camera], "**/*/*")
    ]
    common = set.intersection(*({label for _, label, at in found if at == camera} for camera in CAMERAS))
    if not common:
        raise DataError(f"{root}: amazon, caltech, dslr and webcam have no class in common")
    found = [row for row in found if row[1] in common]
    files, labels, cameras = (list(column) for column in zip(*found, strict=True))
    return listings(Table(files, labels=labels, sites=cameras), root, config, progress=progress)


def _office_class(name: str) -> str:
    """`003.backpack`, `back_pack` and `laptop-101` as Office writes them."""
    plain = re.sub(r"^\d+\.|[-_]\d+$", "", name.lower())
    plain = re.sub(r"[-_ ]+", " ", plain)
    return OFFICE_NAMES.get(plain, plain)


def covid_chestxray(config: DataConfig, progress: Progress | None = None) -> Splits:
    """COVID-19 Image Data Collection by country: `metadata.csv` and `images/` (Cohen et al. 2020).

    X-rays only, by the first word of the finding (COVID-19 by itself). No patient is in both splits.
    """
    root = _folder(config, "the folder with metadata.csv")
    file = root / "metadata.csv"
    rows = read_table(file)
    need_columns(rows, ["patientid", "finding", "modality", "location", "folder", "filename"], file)
    kept = [row for row, modality in enumerate(rows["modality"]) if modality == "X-ray"]
    patients = [rows["patientid"][row] for row in kept]
    table = Table(
        [root / (rows["folder"][row] or "images") / rows["filename"][row] for row in kept],
        labels=[_finding(rows["finding"][row]) for row in kept],
        sites=[rows["location"][row].rpartition(",")[2].strip() or "unknown" for row in kept],
        test=_whole_groups(patients, config.test_fraction),
    )
    return listings(table, root, _gray(config), progress=progress)


def _finding(finding: str) -> str:
    return "COVID-19" if "COVID-19" in finding else finding.split("/")[0].strip() or "unknown"


def camelyon17(config: DataConfig, progress: Progress | None = None) -> Splits:
    """Camelyon17 by hospital, the patches of WILDS: `metadata.csv` and `patches/` (Koh et al. 2021).

    The test split is the one within hospitals (`split` 1).
    """
    root = _folder(config, "the folder with metadata.csv and patches")
    file = root / "metadata.csv"
    rows = read_table(file)
    need_columns(rows, ["patient", "node", "x_coord", "y_coord", "tumor", "center", "split"], file)
    keys = zip(*(rows[name] for name in ("patient", "node", "x_coord", "y_coord")), strict=True)
    paths = []
    for patient, node, x, y in keys:
        name = f"patient_{int(patient):03}_node_{node}"
        paths.append(root / "patches" / name / f"patch_{name}_x_{x}_y_{y}.png")
    table = Table(
        paths,
        labels=["tumor" if value == "1" else "normal" for value in rows["tumor"]],
        sites=[f"center {center}" for center in rows["center"]],
        test=[value == "1" for value in rows["split"]],
    )
    return listings(table, root, config, progress=progress)


def inaturalist(config: DataConfig, progress: Progress | None = None) -> Splits:
    """iNaturalist by user: `train*.json` and optionally `val*.json`, with images at the paths in them.

    The user is an image's `rights_holder` (competitions of 2017 to 2021).
    """
    root = _folder(config, "the folder with train….json and the images")
    pages = [(split, file) for split in ("train", "val") for file in sorted(root.glob(f"{split}*.json"))[:1]]
    if not pages or pages[0][0] != "train":
        raise DataError(f"{root} has no train….json")
    paths: list[Path] = []
    labels: list[str] = []
    users: list[str] = []
    test: list[bool] = []
    for split, file in pages:
        about = _json(file)
        try:
            names = {each["id"]: str(each["name"]) for each in about["categories"]}
            kinds = {each["image_id"]: names[each["category_id"]] for each in about["annotations"]}
            for image in about["images"]:
                paths.append(root / image["file_name"])
                labels.append(kinds[image["id"]])
                users.append(str(image.get("rights_holder") or "unknown"))
                test.append(split == "val")
        except KeyError as error:
            raise DataError(f"{file} has no {error}, as in the competitions' annotations") from None
    table = Table(paths, labels=labels, sites=users, test=test)
    return listings(table, root, config, progress=progress)


def femnist(config: DataConfig, progress: Progress | None = None) -> tuple[ImageSet, ImageSet | None]:
    """FEMNIST by writer (LEAF, Caldas et al. 2018): JSON files in `train/` and `test/`, or in `all_data/`."""
    root = _folder(config, "LEAF's folder with train and test, or all_data")
    found = {name: sorted((root / name).glob("*.json")) for name in ("train", "test", "all_data")}
    files = found["train"] or found["all_data"] or sorted(root.glob("*.json"))
    if not files:
        raise DataError(f"{root} has no JSON files of LEAF in train, all_data or itself")
    train = _writers(files, progress)
    test = _writers(found["test"], progress) if found["train"] and found["test"] else None
    names, _ = number_names([*train[2], *(test[2] if test else [])])

    def images(x: list[Any], y: list[int], writers: list[str]) -> ImageSet:
        pixels = torch.from_numpy(np.concatenate(x).reshape(-1, 28, 28, 1))
        numbers = {name: number for number, name in enumerate(names)}
        domain = torch.tensor([numbers[writer] for writer in writers])
        return ImageSet(
            pixels, torch.tensor(y), FEMNIST_CLASSES, domain, names, name="femnist", mirrored=False
        )

    return images(*train), images(*test) if test else None


def _writers(files: Sequence[Path], progress: Progress | None) -> tuple[list[Any], list[int], list[str]]:
    """Pixels, classes and writers of all images in these files."""
    x: list[Any] = []
    y: list[int] = []
    writers: list[str] = []
    for number, file in enumerate(files):
        about = _json(file)
        for writer in about.get("users", []):
            own = about["user_data"][writer]
            pixels = np.asarray(own["x"], dtype=np.float64)
            if pixels.shape != (len(own["y"]), 784) or not (pixels.min() >= 0 and pixels.max() <= 1):
                raise DataError(f"{file}: writer {writer} has no images of 28×28 pixels from 0 to 1")
            x.append(np.rint(255 * pixels).astype(np.uint8))
            y += own["y"]
            writers += [str(writer)] * len(own["y"])
        if progress is not None:
            progress(number + 1, len(files), "reading femnist")
    if not x:
        raise DataError(f"{files[0].parent}: no writers in {len(files)} files")
    return x, y, writers


# --- helpers ---------------------------------------------------------------------------------------


def _folder(config: DataConfig, what: str) -> Path:
    root = Path(config.root).expanduser()
    if not config.root or not root.is_dir():
        raise DataError(f"data.name={config.name} needs data.root: {what} (found no folder {config.root!r})")
    return root


def _images(place: Path, pattern: str) -> list[Path]:
    return sorted(file for file in place.glob(pattern) if file.suffix.lower() in SUFFIXES)


def _gray(config: DataConfig) -> DataConfig:
    """Default to one channel."""
    return config.model_copy(update={"channels": config.channels or 1})


def _json(file: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}") from None
    return about


def _whole_groups(groups: Sequence[str], fraction: float) -> list[bool]:
    """Whether each image is in the test split: whole groups (patients), chosen by a hash of their names."""
    counts = Counter(groups)
    order = sorted(counts, key=lambda name: hashlib.blake2b(name.encode()).digest())
    taken: set[str] = set()
    total = 0
    for name in order[:-1]:
        if total >= fraction * len(groups):
            break
        taken.add(name)
        total += counts[name]
    return [name in taken for name in groups]
