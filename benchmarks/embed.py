"""Images per second of `fedssl embed` against the encoder's forward pass on ready-made tensors.

    python benchmarks/embed.py [--encoder resnet18] [--width 64] [--images 1024] [--side 64] [--repeats 3]

PNG files are read, decoded, embedded and written to Parquet; the bare loop has the same number
of images in memory, in batches of the same size. The two take turns; the ratio is that of the fastest turns.
For small images and a small encoder, reading the files is the limit.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from ratios import Ratio, report

import fedssl
from fedssl.allocator import keep_freed_memory
from fedssl.use.embed import BATCH, write_parquet
from fedssl.use.trained import Trained, load_trained


def make_images(folder: Path, count: int, side: int) -> None:
    """Smooth pictures, which compress like photographs."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(count):
        small = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        small.resize((side, side), Image.Resampling.BICUBIC).save(folder / f"{number:05}.png")


def train(folder: Path, out: Path, options: argparse.Namespace) -> Trained:
    settings = {
        "rounds": 1,
        "data": {"name": "folder", "root": str(folder), "limit": 64},
        "partition": {"scheme": "iid", "clients": 2},
        "model": {"encoder": options.encoder, "width": options.width},
        "train": {"epochs": 1, "batch_size": 16},
        "log": {"tensorboard": False},
    }
    return load_trained(fedssl.run(settings, out=out, quiet=True).path, "cpu")


def bare(trained: Trained, images: int, side: int) -> float:
    """Seconds for the forward passes alone."""
    pixels = torch.randn(BATCH, 3, side, side).contiguous(memory_format=torch.channels_last)
    began = time.perf_counter()
    with torch.no_grad():
        for _ in range(images // BATCH):
            trained.network(pixels)
    return time.perf_counter() - began


def whole(trained: Trained, folder: Path, file: Path) -> float:
    began = time.perf_counter()
    write_parquet(trained, folder, file)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    images = options.images // BATCH * BATCH
    with tempfile.TemporaryDirectory() as temporary, keep_freed_memory():
        folder = Path(temporary)
        make_images(folder / "images", images, options.side)
        trained = train(folder / "images", folder / "run", options)
        bare(trained, BATCH, options.side)
        turns = [
            (bare(trained, images, options.side), whole(trained, folder / "images", folder / "v.parquet"))
            for _ in range(options.repeats)
        ]
    limit, reached = (images / min(column) for column in zip(*turns, strict=True))
    what = (
        f"fedssl embed against the forward pass, {options.encoder} width {options.width}, side {options.side}"
    )
    report([Ratio(what, reached / limit, note=f"{reached:,.0f} of {limit:,.0f} images/s")])


if __name__ == "__main__":
    main()
