"""Folders of images, with everything that is found in such folders."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from fedssl.data import decoding, files, sets
from fedssl.data.options import DataConfig
from fedssl.errors import DataError


def save(
    path: Path, color: Any = (10, 20, 30), size: tuple[int, int] = (8, 8), mode: str = "RGB", **how: Any
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path, **how)


def noise(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def load(root: Path, **keys: Any) -> tuple[Any, Any]:
    return sets.load(DataConfig(name="folder", root=str(root), **keys), 0)


def reds(images: Any) -> list[int]:
    return [int(red) for red in images.x[:, 0, 0, 0]]


def test_flat_folder_is_unlabeled_and_sorted(tmp_path: Path) -> None:
    for number, name in enumerate(["b.png", "a.BMP", "c.JPeg"]):
        save(tmp_path / name, (number * 100, 0, 0))
    train, test = load(tmp_path)
    assert (train.y, train.domain, train.classes, test) == (None, None, (), None)
    assert train.x.shape == (3, 8, 8, 3)
    assert np.allclose(reds(train), [100, 0, 200], atol=3)  # a, b, c; JPEG is lossy
    assert train.name == tmp_path.name
    assert not train.warnings


def test_class_folders_are_labels_and_split(tmp_path: Path) -> None:
    for label, name in enumerate(["cat", "dog"]):
        for number in range(5):
            save(tmp_path / name / f"{number}.png", (label * 100 + number, 0, 0))
    train, test = load(tmp_path)
    assert train.classes == test.classes == ("cat", "dog")
    assert (len(train), len(test)) == (8, 2)
    assert sorted(reds(train) + reds(test)) == [0, 1, 2, 3, 4, 100, 101, 102, 103, 104]
    for part in (train, test):
        assert part.y.tolist() == [red // 100 for red in reds(part)]


def test_style_folders_are_domains(tmp_path: Path) -> None:
    for style in range(2):
        for label in range(3):
            for number in range(2):
                path = tmp_path / ["sketch", "art"][style] / ["x", "y", "z"][label] / f"{number}.png"
                save(path, (style * 100 + label * 10, 0, 0))
    train, _ = load(tmp_path, test_fraction=0.01)
    assert (train.domains, train.classes) == (("art", "sketch"), ("x", "y", "z"))
    assert train.domain.tolist() == [1 - red // 100 for red in reds(train)]
    assert train.y.tolist() == [red % 100 // 10 for red in reds(train)]


def test_train_and_test_folders_are_the_splits(tmp_path: Path) -> None:
    save(tmp_path / "train" / "b" / "1.png", (1, 0, 0))
    save(tmp_path / "train" / "c" / "2.png", (2, 0, 0))
    save(tmp_path / "test" / "a" / "3.png", (3, 0, 0))
    save(tmp_path / "val" / "a" / "4.png", (4, 0, 0))
    train, test = load(tmp_path)
    assert (reds(train), reds(test)) == ([1, 2], [3])
    assert train.classes == test.classes == ("a", "b", "c")
    assert (train.y.tolist(), test.y.tolist()) == ([1, 2], [0])
    assert train.warnings == ("ignored next to train and test: val",)


def test_train_folder_alone(tmp_path: Path) -> None:
    for number in range(10):
        save(tmp_path / "train" / "only" / f"{number}.png")
    train, test = load(tmp_path)
    assert (len(train), len(test), train.classes, train.domain) == (8, 2, ("only",), None)


def test_unreadable_files_are_left_out_and_named(tmp_path: Path) -> None:
    for number in range(4):
        save(tmp_path / "a" / f"{number}.png", (number, 0, 0))
        save(tmp_path / "b" / f"{number}.png", (100 + number, 0, 0))
    (tmp_path / "a" / "0.png").write_bytes(b"")
    (tmp_path / "b" / "2.png").write_bytes(b"GIF89a and nothing more")
    Image.fromarray(noise(64, 64)).save(tmp_path / "b" / "cut.jpg")
    (tmp_path / "b" / "cut.jpg").write_bytes((tmp_path / "b" / "cut.jpg").read_bytes()[:1500])
    (tmp_path / "a" / "notes.txt").write_text("hello")
    (tmp_path / "a" / ".hidden.png").write_bytes(b"")
    train, test = load(tmp_path, size=8, test_fraction=0.01)
    assert test is not None
    said = " | ".join((*train.warnings, *test.warnings))
    for name in ("a/notes.txt", "a/0.png (not an image)", "b/2.png", "b/cut.jpg (image file is truncated"):
        assert name in said
    assert ".hidden" not in said
    assert sorted(reds(train) + reds(test)) == [1, 2, 3, 100, 101, 103]
    for part in (train, test):
        assert part.y.tolist() == [red // 100 for red in reds(part)]  # labels stay with their images


def test_long_lists_of_names_are_cut_short(tmp_path: Path) -> None:
    save(tmp_path / "ok.png")
    for number in range(25):
        (tmp_path / f"bad{number:02}.png").write_bytes(b"no")
    (warning,) = load(tmp_path, size=8)[0].warnings
    assert "25 of 26 images left out" in warning
    assert "bad09.png" in warning
    assert "bad10" not in warning
    assert warning.endswith("and 15 more")


def test_nothing_readable_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no")
    with pytest.raises(DataError, match=r"none of 1 images can be read: bad.png \(not an image\)"):
        load(tmp_path)


def test_mixed_sizes_become_the_median_side(tmp_path: Path) -> None:
    for number, size in enumerate([(4, 6), (10, 8), (40, 30)]):
        save(tmp_path / f"{number}.png", size=size)
    train, _ = load(tmp_path)
    assert train.size == (9, 9)  # median of 4 6 8 10 30 40
    assert "3 sizes (6×4 to 30×40) are resized to 9×9" in train.warnings[0]


def test_sizes_are_capped_with_a_warning(tmp_path: Path) -> None:
    save(tmp_path / "big.png", size=(300, 230))
    train, _ = load(tmp_path)
    assert train.size == (224, 224)
    assert "images of 230×300 are resized to 224×224" in train.warnings[0]


def test_a_common_size_is_kept_even_if_not_square(tmp_path: Path) -> None:
    pixels = noise(5, 7)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    train, _ = load(tmp_path)
    assert np.array_equal(train.x[0].numpy(), pixels)
    assert not train.warnings


def test_a_configured_size_uses_pillow_without_a_warning(tmp_path: Path) -> None:
    pixels = noise(40, 60)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    train, _ = load(tmp_path, size=16)
    expected = Image.fromarray(pixels).resize((16, 16), Image.Resampling.BILINEAR)
    assert np.array_equal(train.x[0].numpy(), np.asarray(expected))
    assert not train.warnings


def test_large_jpegs_decoded_small_look_the_same(tmp_path: Path) -> None:
    smooth = Image.fromarray(noise(6, 6)).resize((600, 600), Image.Resampling.BICUBIC)
    smooth.save(tmp_path / "a.jpg", quality=95)
    train, _ = load(tmp_path, size=32)
    expected = np.asarray(smooth.resize((32, 32), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(train.x[0].numpy() - expected).mean() < 2


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png", "tif"])
def test_camera_orientation_is_followed(tmp_path: Path, orientation: int, suffix: str) -> None:
    picture = Image.fromarray(np.kron(noise(2, 3), np.ones((8, 8, 1), dtype=np.uint8)))
    exif = Image.Exif()
    exif[decoding.ORIENTATION] = orientation
    picture.save(tmp_path / f"a.{suffix}", exif=exif)
    with Image.open(tmp_path / f"a.{suffix}") as opened:
        opened.load()
        expected = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
    train, _ = load(tmp_path)
    assert train.size == ((16, 24) if orientation < 5 else (24, 16))
    assert np.array_equal(train.x[0].numpy(), expected)


def test_every_kind_of_picture_becomes_rgb(tmp_path: Path) -> None:
    save(tmp_path / "a_grey.png", 77, mode="L")
    save(tmp_path / "b_bits.png", 1, mode="1")
    save(tmp_path / "c_palette.gif", 3, mode="P")
    save(tmp_path / "d_cmyk.jpg", (0, 0, 0, 0), mode="CMYK")
    save(tmp_path / "e_clear.png", (200, 0, 0, 0), mode="RGBA")
    save(tmp_path / "f_half.png", (0, 100, 200, 51), mode="RGBA")
    save(tmp_path / "g_grey_clear.png", (0, 0), mode="LA")
    Image.fromarray(np.full((8, 8), 257 * 90, dtype=np.uint16)).save(tmp_path / "h_16bit.png")
    save(tmp_path / "i_web.webp", (0, 0, 255), lossless=True)
    save(tmp_path / "j_tiff.TIFF", (1, 2, 3))
    palette = Image.new("P", (8, 8), 0)
    palette.putpalette([9, 9, 9] * 256)
    palette.save(tmp_path / "k_palette_clear.png", transparency=0)
    train, _ = load(tmp_path)
    assert not train.warnings
    corners = train.x[:, 0, 0].tolist()
    assert corners[0] == [77, 77, 77]
    assert corners[1] == corners[3] == corners[4] == corners[6] == corners[10] == [255, 255, 255]
    assert corners[5] == [204, 224, 244]  # 0.2 × color + 0.8 × white
    assert corners[7] == [90, 90, 90]
    assert corners[8] == [0, 0, 255]
    assert corners[9] == [1, 2, 3]


def test_gray_on_request(tmp_path: Path) -> None:
    pixels = noise(8, 8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    train, _ = load(tmp_path, channels=1)
    assert np.array_equal(train.x[0, :, :, 0].numpy(), np.asarray(Image.fromarray(pixels).convert("L")))


def test_single_pixels_and_animations(tmp_path: Path) -> None:
    save(tmp_path / "a.png", (5, 6, 7), size=(1, 1))
    frames = [Image.new("RGB", (4, 4), (level, 0, 0)) for level in (0, 255)]
    frames[0].save(tmp_path / "b.gif", save_all=True, append_images=frames[1:])
    train, _ = load(tmp_path, size=4)
    assert train.x[0].reshape(-1, 3).unique(dim=0).tolist() == [[5, 6, 7]]
    assert reds(train)[1] == 0


def test_pixels_without_a_fixed_range_are_left_out(tmp_path: Path) -> None:
    save(tmp_path / "a.png")
    Image.fromarray(np.ones((8, 8), dtype=np.float32)).save(tmp_path / "b.tif")
    Image.fromarray(np.full((8, 8), -5, dtype=np.int32)).save(tmp_path / "c.tif")
    train, _ = load(tmp_path)
    assert len(train) == 1
    assert "b.tif (float pixels have no fixed range;" in train.warnings[0]
    assert "c.tif (32-bit pixels have no fixed range;" in train.warnings[0]


def test_limit_decodes_only_what_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        save(tmp_path / f"{number:02}.png", (number, 0, 0))
    decoded: list[Path] = []
    read = files.read_image

    def counting(file: Any, *more: Any) -> np.ndarray:
        decoded.append(file)
        return read(file, *more)

    monkeypatch.setattr(files, "read_image", counting)
    train, _ = load(tmp_path, limit=5, size=8)
    assert len(decoded) == len(train) == 5
    assert reds(train) == sorted(reds(train))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "contains no images"),
        (["notes.txt"], "contains no images"),
        (["a.png", "cat/b.png"], r"1 at depth 1 \(a.png\), 1 at depth 2 \(cat/b.png\)"),
        (["a/b/c/d.png"], r"1 at depth 4 \(a/b/c/d.png\)"),
        (["train/a.png", "test/cat/b.png"], "train is image, but test is class/image"),
        (["train/a.png", "test/notes.txt"], "test contains no images"),
    ],
)
def test_folders_that_are_not_a_data_set(tmp_path: Path, files: Iterable[str], message: str) -> None:
    for name in files:
        path = tmp_path / name
        if name.endswith("png"):
            save(path)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text("hello")
    with pytest.raises(DataError, match=message):
        load(tmp_path)


def test_roots_that_are_not_folders(tmp_path: Path) -> None:
    save(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"data\.root is empty"):
        sets.load(DataConfig(name="folder"), 0)
    with pytest.raises(DataError, match=r"no folder .*missing"):
        load(tmp_path / "missing")
    with pytest.raises(DataError, match="is not a folder"):
        load(tmp_path / "a.png")


def test_unreadable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(place: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(place))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=f"{tmp_path} cannot be read: Permission denied"):
        load(tmp_path)


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    save(tmp_path / "cat" / "a.png")
    os.symlink(tmp_path, tmp_path / "cat" / "again")
    with pytest.raises(DataError, match="depth 4"):
        load(tmp_path)


def test_file_names_may_have_any_bytes(tmp_path: Path) -> None:
    strange = os.fsdecode(b"caf\xe9 \xff")
    save(tmp_path / strange / "x.png")
    save(tmp_path / "plain" / "y.png")
    train, _ = load(tmp_path)
    assert train.classes[0].encode() == "caf\ufffd \ufffd".encode()


def test_progress_covers_sizes_and_decoding(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / f"{number}.png")
    calls: list[tuple[int, int, str]] = []
    sets.load(DataConfig(name="folder", root=str(tmp_path)), 0, lambda *call: calls.append(call))
    assert calls == [(3, 3, "reading image sizes"), (3, 3, f"decoding {tmp_path.name}")]


def test_same_bits_whatever_the_number_of_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        Image.fromarray(noise(20, 30, seed=number)).save(tmp_path / f"{number:02}.jpg")
    monkeypatch.setattr("fedssl.data.reading.MIN_SECONDS", 0.0)
    monkeypatch.setattr("fedssl.data.reading.TIMED", 1)
    monkeypatch.setattr("fedssl.data.reading.THREADS", 1)
    one, _ = load(tmp_path, size=16)
    monkeypatch.setattr("fedssl.data.reading.THREADS", 8)
    monkeypatch.setattr("fedssl.data.cache.BLOCK_BYTES", 5 * 16 * 16 * 3)
    many, _ = load(tmp_path, size=16)
    assert torch.equal(one.x, many.x)
