"""Decoding into memory and into the memory-mapped cache."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import threading
import tracemalloc
import warnings
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedssl.data import cache, sets
from fedssl.data.cache import Listing, decode
from fedssl.data.options import DataConfig
from fedssl.errors import DataError

SHAPE = (64, 64, 3)
COUNT = 200  # × 12 KB: more than the 1 MB that memory_mb=1 allows


class Made:
    """Images filled with their index; counts reads."""

    def __init__(self, unreadable: tuple[int, ...] = (), version: str = "1") -> None:
        self.unreadable = unreadable
        self.version = version
        self.reads: list[int] = []

    def name(self, number: int) -> str:
        return f"made{number}"

    def stamp(self, number: int) -> str:
        return f"{self.version}/{number}"

    def read(self, number: int, shape: tuple[int, int, int]) -> np.ndarray:
        self.reads.append(number)
        if number in self.unreadable:
            raise ValueError("spoilt")
        return np.random.default_rng(number).integers(0, 256, shape, dtype=np.uint8)


def listing(source: Made, count: int = COUNT) -> Listing:
    return Listing(source, np.arange(count), SHAPE, y=torch.arange(count) % 7, name="made")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSSL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "BLOCK_BYTES", 30 * 64 * 64 * 3)  # several blocks, the last one shorter
    return tmp_path / "cache"


def kept(place: Path) -> list[str]:
    return sorted(entry.name for entry in place.iterdir() if entry.suffix != ".lock")


def test_mapped_pixels_equal_those_in_memory_and_are_decoded_once(place: Path) -> None:
    source = Made()
    in_memory = decode(listing(Made()), memory_mb=100)
    assert not place.exists()
    mapped = decode(listing(source), memory_mb=1)
    again = decode(listing(source), memory_mb=1)
    assert len(source.reads) == COUNT
    assert len(kept(place)) == 1
    assert in_memory.y is not None
    index = torch.tensor([199, 0, 57])
    for images in (mapped, again):
        assert torch.equal(images.x, in_memory.x)
        assert torch.equal(images.x[index], in_memory.x[index])
        assert images.y is not None
        assert torch.equal(images.y, in_memory.y)


def test_mapping_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        images = decode(listing(Made()), memory_mb=1)
    assert len(images) == 200


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_indexing_reads_only_some_pages() -> None:
    images = decode(listing(Made()), memory_mb=1)

    def resident_kb() -> int:
        maps = Path("/proc/self/smaps").read_text()
        found = re.search(r"/cache/[0-9a-f]{32}/pixels\n(?:.*\n)*?Rss: +(\d+) kB", maps)
        assert found is not None
        return int(found[1])

    assert resident_kb() < 200
    images.x[torch.tensor([100])]
    assert 0 < resident_kb() < 400  # the kernel maps some neighbors; the whole is 2,400 kB
    images.x.sum()
    assert resident_kb() == 2400


def test_unreadable_images_are_left_out_of_pixels_and_labels(place: Path) -> None:
    bad = (0, 31, 199)
    in_memory = decode(listing(Made(bad)), memory_mb=100)
    fresh = decode(listing(Made(bad)), memory_mb=1)
    reopened = decode(listing(Made(bad)), memory_mb=1)
    good = [number for number in range(COUNT) if number not in bad]
    for images in (in_memory, fresh, reopened):
        assert images.y is not None
        assert images.y.tolist() == [number % 7 for number in good]
        assert torch.equal(images.x[30], torch.from_numpy(Made().read(32, SHAPE)))
        assert len(images) == 197
        assert images.warnings == (
            "made: 3 of 200 images left out: made0 (spoilt), made31 (spoilt), made199 (spoilt)",
        )
    assert (place / kept(place)[0] / "pixels").stat().st_size == 197 * 64 * 64 * 3


def test_different_sources_sizes_and_subsets_have_different_entries(place: Path) -> None:
    decode(listing(Made()), memory_mb=1)
    decode(listing(Made(version="2")), memory_mb=1)
    decode(listing(Made()).subset(np.arange(1, COUNT)), memory_mb=1)
    decode(Listing(Made(), np.arange(COUNT), (64, 65, 3)), memory_mb=1)
    assert len(kept(place)) == 4


def test_an_interrupted_build_continues(place: Path) -> None:
    def interrupt(done: int, total: int, what: str) -> None:
        assert kept(place) == [next(iter(kept(place)))]
        if done > 100:
            raise KeyboardInterrupt

    bad = (3, 190)
    with pytest.raises(KeyboardInterrupt):
        decode(listing(Made(bad)), 1, interrupt)
    source, seen = Made(bad), []
    found = decode(listing(source), 1, lambda done, total, what: seen.append((done, total)))
    assert source.reads == list(range(90, COUNT))  # three blocks of 30 were complete
    assert seen == [(120, COUNT), (150, COUNT), (180, COUNT), (COUNT, COUNT)]
    expected = decode(listing(Made(bad)), 100)
    assert torch.equal(found.x, expected.x)
    assert found.warnings == expected.warnings


@pytest.mark.parametrize("damage", ["no journal", "half a journal", "short", "killed while it wrote"])
def test_complete_parts_of_a_killed_build_are_reused(place: Path, damage: str) -> None:
    done: list[int] = []

    def interrupt(*numbers: Any) -> None:
        done.append(numbers[0])
        if len(done) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode(listing(Made()), 1, interrupt)
    (part,) = place.glob("*.part")
    journal = part / cache.DONE
    if damage == "no journal":
        journal.unlink()
    elif damage == "half a journal":
        journal.write_text(journal.read_text()[:10])
    elif damage == "short":
        os.truncate(part / "pixels", 5 * 64 * 64 * 3)
    else:
        with open(part / "pixels", "ab") as file:
            file.write(b"x" * 7 * 64 * 64 * 3)
    source = Made()
    assert torch.equal(decode(listing(source), 1).x, decode(listing(Made()), 100).x)
    assert len(source.reads) == (110 if damage == "killed while it wrote" else COUNT)
    assert not list(place.glob("*.part"))


def test_memory_does_not_grow_with_the_images(place: Path) -> None:
    tracemalloc.start()
    try:
        decode(listing(Made(), 400), 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * cache.BLOCK_BYTES < 400 * 64 * 64 * 3 / 3


def test_remains_of_a_killed_build_are_replaced(place: Path) -> None:
    decode(listing(Made()), 1)
    (entry,) = kept(place)
    (place / entry).rename(place / f"{entry}.part")
    os.truncate(place / f"{entry}.part" / "pixels", 1000)
    source = Made()
    assert torch.equal(decode(listing(source), 1).x, decode(listing(Made()), 100).x)
    assert len(source.reads) == COUNT
    assert kept(place) == [entry]


@pytest.mark.parametrize("damage", ["short", "no json", "bad json"])
def test_damaged_entries_are_rebuilt(place: Path, damage: str) -> None:
    decode(listing(Made()), 1)
    entry = place / kept(place)[0]
    if damage == "short":
        os.truncate(entry / "pixels", 1000)
    elif damage == "no json":
        (entry / "about.json").unlink()
    else:
        (entry / "about.json").write_text("{")
    source = Made()
    assert torch.equal(decode(listing(source), 1).x, decode(listing(Made()), 100).x)
    assert len(source.reads) == COUNT


def test_full_disk_says_how_much_is_needed_and_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def fill(file: Any, pixels: np.ndarray) -> None:
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(file.write(pixels.data))

    monkeypatch.setattr(cache, "append", fill)
    with pytest.raises(DataError, match=r"need 3 MB in .*cache, but [\d,]+ MB are free.*FEDSSL_CACHE"):
        decode(listing(Made()), 1)
    assert len(written) == 3
    assert kept(place) == []


def test_too_small_a_disk_is_noticed_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**7, 8 * 10**6, 2 * 10**6))
    source = Made()
    with pytest.raises(DataError, match=r"need 3 MB in .*, but 1 MB are free"):
        decode(listing(source), 1)
    assert not source.reads


def test_a_read_only_cache_names_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDSSL_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(DataError, match="set FEDSSL_CACHE to a writable folder"):
        decode(listing(Made()), 1)


def test_two_processes_decode_once(place: Path) -> None:
    source = Made()
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(decode(listing(source), 1))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(source.reads) == COUNT
    assert torch.equal(found[0].x, found[1].x)


def test_no_readable_images_is_an_error_with_the_cache_too() -> None:
    for _ in range(2):
        with pytest.raises(DataError, match="none of 200 images can be read: made0"):
            decode(listing(Made(tuple(range(COUNT)))), 1)


def test_progress_counts_images() -> None:
    calls: list[tuple[int, int, str]] = []
    decode(listing(Made(), 70), 100, lambda *call: calls.append(call))
    assert calls == [(30, 70, "decoding made"), (60, 70, "decoding made"), (70, 70, "decoding made")]


def test_the_default_cache_is_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDSSL_CACHE")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache.folder() == Path("/home/somebody/.cache/fedssl/arrays")


def test_folder_larger_than_memory_mb_is_mapped_and_follows_its_files(tmp_path: Path, place: Path) -> None:
    root = tmp_path / "images"
    for label in range(2):
        (root / str(label)).mkdir(parents=True)
        for number in range(6):
            Image.new("RGB", (8, 8), (100 * label + number, 0, 0)).save(root / str(label) / f"{number}.png")
    config = DataConfig(name="folder", root=str(root), size=256, memory_mb=1)
    large: Any = sets.load(config, 0)
    small: Any = sets.load(config.model_copy(update={"memory_mb": 100}), 0)
    assert len(kept(place)) == 1  # ten training images; two test images fit into memory
    for mapped, in_memory in zip(large, small, strict=True):
        assert torch.equal(mapped.x, in_memory.x)
    Image.new("RGB", (8, 8), (255, 0, 0)).save(root / "0" / "0.png")
    os.utime(root / "0" / "0.png", ns=(1, 1))
    changed: Any = sets.load(config, 0)
    assert 255 in torch.cat([part.x[:, 0, 0, 0] for part in changed])
