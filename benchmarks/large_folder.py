"""A folder of JPEGs larger than memory against the same images in memory, in the same run.

    python benchmarks/large_folder.py [--images 20000] [--side 256] [--share 0.1] [--folder DIR]

Both runs train the same steps on the same images; the one from the folder may hold `share` of their decoded
size (`data.memory_mb`), so it decodes them once into a cache on disk and maps that file. On Linux the cache's
pages are dropped before every round, from the process and from the system: each image is read from the disk
again. Decoding is reported apart, because it happens once. The images of the other run must fit into memory:
20,000 of 256 pixels are 4 GB.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from ratios import Ratio, report

import fedssl

ROUNDS = 4  # the first one is warm-up


def make_images(folder: Path, count: int, side: int) -> None:
    """Smooth pictures with some noise, which compress like photographs, as `site/number.jpg`."""
    rng = np.random.default_rng(0)
    noise = rng.integers(-12, 13, (side, side, 3), dtype=np.int16)
    for number in range(count):
        small = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        smooth = np.asarray(small.resize((side, side), Image.Resampling.BICUBIC), dtype=np.int16)
        pixels = np.roll(noise, number, axis=0) + smooth
        place = folder / f"site{number % 4}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place / f"{number:05}.jpg", quality=90)


class Clock(fedssl.Listener):
    """Views per second of every round; before each, drops the pages of the cache, if there is one."""

    def __init__(self, cache: Path | None) -> None:
        self.cache, self.rates = cache, list[float]()
        self.began = time.perf_counter()
        self.ready = 0.0
        self.mapped: Any = None

    def started(self, info: Any) -> None:
        self.ready = time.perf_counter() - self.began
        self.mapped = info.federation.train.x
        self._forget()

    def round(self, line: dict[str, Any]) -> None:
        self.rates.append(line["views"] / line["seconds"])
        self._forget()

    def _forget(self) -> None:
        if self.cache is None or sys.platform != "linux":
            return
        start, size = ctypes.c_void_p(self.mapped.data_ptr()), ctypes.c_size_t(self.mapped.numel())
        if ctypes.CDLL(None).madvise(start, size, mmap.MADV_DONTNEED):
            sys.exit("the images are not mapped")
        for file in self.cache.glob("*/pixels"):
            with open(file, "rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def train(folder: Path, out: Path, memory_mb: int, options: argparse.Namespace, cache: Path | None) -> Clock:
    clock = Clock(cache)
    steps = max(2, options.steps)
    per_client = options.images // 4
    settings = {
        "rounds": ROUNDS,
        "data": {"name": "folder", "root": str(folder), "size": options.side, "memory_mb": memory_mb},
        "partition": {"scheme": "folder"},
        "participation": {"per_round": 1},
        "model": {"encoder": options.encoder, "stem_stride": 2},
        "train": {"epochs": min(1.0, steps * options.batch / per_client), "batch_size": options.batch},
        "probe": {"every": 0, "protocol": "none"},
        "checkpoint": {"every": ROUNDS},
        "engine": {"threads": options.threads},
        "log": {"tensorboard": False},
    }
    fedssl.run(settings, out=out, quiet=True, listeners=[clock])
    return clock


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--share", type=float, default=0.1, help="of the decoded size that may be in memory")
    parser.add_argument("--encoder", default="resnet8")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10, help="of a client in a round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep images and cache here, and use them again")
    options = parser.parse_args()
    whole_mb = options.images * options.side**2 * 3 / 2**20
    with tempfile.TemporaryDirectory() as temporary:
        place = options.folder or Path(temporary)
        cache = place / "cache"
        os.environ["FEDSSL_CACHE"] = str(cache)
        if not (place / "images").exists():
            make_images(place / "images", options.images, options.side)
        runs = Path(temporary)
        limit_mb = max(1, int(options.share * whole_mb))
        small = train(place / "images", runs / "small", limit_mb, options, cache)
        large = train(place / "images", runs / "large", int(2 * whole_mb) + 1, options, None)
    from_disk, in_memory = max(small.rates[1:]), max(large.rates[1:])
    what = f"{options.images:,} JPEGs of {options.side} pixels, memory for {options.share:.0%} of them"
    decoded = options.images / small.ready
    report(
        [
            Ratio(
                f"training from {what}, against all in memory",
                from_disk / in_memory,
                least=0.9,
                note=f"{from_disk:,.0f} of {in_memory:,.0f} views/s",
            ),
            Ratio("decoding them once into the cache", decoded, unit="images/s"),
        ]
    )


if __name__ == "__main__":
    main()
