"""Create missing keys and images for a trial: python trial.py KEYS IMAGES SITE [SITE …]

Every site gets its own handwritten digits; folders of classes are their labels.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits


def make_keys(folder: Path, sites: list[str]) -> None:
    hosts = [] if (folder / "server" / "server.crt").exists() else ["--host", "server,localhost"]
    command = [sys.executable, "-m", "fedssl.cli", "certs", str(folder), "--sites", ",".join(sites)]
    subprocess.run([*command, *hosts], check=True)


def make_images(folder: Path, sites: list[str]) -> None:
    digits = load_digits()
    for site, own in zip(sites, np.array_split(np.arange(len(digits.images)), len(sites)), strict=True):
        for number in own:
            file = folder / site / str(digits.target[number]) / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((digits.images[number] * 15.9).astype(np.uint8)).save(file)


if __name__ == "__main__":
    keys, images, *names = sys.argv[1:]
    make_keys(Path(keys), names)
    make_images(Path(images), names)
