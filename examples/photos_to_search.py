"""Train on a folder of photos, embed them, and find similar images and near-duplicates.

Without FOLDER, the script uses crops of two photos from scikit-learn and adds a smaller, darker copy of every
tenth crop. It then checks whether the search finds the original of each copy. (Crops of plain sky are also
among the closest pairs.)

    python examples/photos_to_search.py [FOLDER]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance
from sklearn.datasets import load_sample_images

import fedssl
from fedssl.use.embed import Embedded, embed, embed_one, find_images
from fedssl.use.search import duplicates, nearest
from fedssl.use.trained import load_trained


def write_crops(folder: Path, count: int) -> None:
    """Write `count` crops of 64×64 pixels, and edited copies of every tenth."""
    rng = np.random.default_rng(0)
    photographs = dict(zip(("temple", "flower"), load_sample_images().images, strict=True))
    for number in range(count):
        name = ("temple", "flower")[number % 2]
        height, width, _ = photographs[name].shape
        y, x = rng.integers(height - 96), rng.integers(width - 96)
        crop = Image.fromarray(photographs[name][y : y + 96, x : x + 96]).resize((64, 64))
        crop.save(folder / f"{name}-{number:03}.png")
        if number % 10 == 0:
            darker = ImageEnhance.Brightness(crop.resize((56, 56))).enhance(0.9)
            darker.save(folder / f"{name}-{number:03}-copy.jpg", quality=80)


def finds_original(found: Embedded, copy: int) -> bool:
    """Return whether the original of a copy is among its three nearest images."""
    near = [found.paths[hit.number] for hit in nearest(found, found.vectors[copy], 4)]
    return found.paths[copy].replace("-copy.jpg", ".png") in near


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", nargs="?", help="your photos (default: crops of two photos)")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--images", type=int, default=200, help="number of crops")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(options.folder or Path(name) / "photos")
        if not options.folder:
            folder.mkdir()
            write_crops(folder, options.images)
        run = fedssl.run(
            data={"name": "folder", "root": str(folder), "size": 32},
            partition={"scheme": "iid", "clients": 4},
            rounds=options.rounds,
            probe={"every": 0, "protocol": "none"},
            engine={"threads": 1},  # small networks are slower with several threads
            out=Path(name) / "run",
            quiet=True,
        )
        trained = load_trained(run.path)
        found = embed(trained, folder)
        query = find_images(folder)[0]
        print(f"most similar to {query}:")
        for hit in nearest(found, embed_one(trained, folder / query), 6)[1:]:  # the first is the query
            print(f"  {hit.similarity:.4f}  {found.paths[hit.number]}")
        pairs = duplicates(found, 0.999)
        print(f"{len(pairs)} pairs with a cosine of at least 0.999; the closest:")
        for pair in pairs[:5]:
            print(f"  {pair.similarity:.4f}  {found.paths[pair.first]}  {found.paths[pair.second]}")
        copies = [number for number, path in enumerate(found.paths) if path.endswith("-copy.jpg")]
        if copies:
            right = sum(finds_original(found, number) for number in copies)
            print(f"{right} of {len(copies)} copies have their original among the three nearest images")


if __name__ == "__main__":
    main()
