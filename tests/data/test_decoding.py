"""Pixels of TIFF pages, NumPy arrays and DICOM files, against other readers and by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import tifffile
from PIL import Image
from pydicom.dataset import FileMetaDataset
from pydicom.pixels import apply_windowing
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

from fedssl.data.decoding import image_channels, image_size, read_image, to_bytes
from fedssl.data.options import DataConfig

RAMP = np.linspace(0, 65535, 48).astype(np.uint16).reshape(6, 8)


def dicom(file: Path, pixels: np.ndarray, photometric: str = "MONOCHROME2", **tags: Any) -> Path:
    """A DICOM file of unsigned 16-bit (or 8-bit RGB) pixels."""
    found = pydicom.Dataset()
    found.file_meta = FileMetaDataset()
    found.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    found.file_meta.MediaStorageSOPClassUID = found.SOPClassUID = SecondaryCaptureImageStorage
    found.file_meta.MediaStorageSOPInstanceUID = found.SOPInstanceUID = generate_uid()
    found.Rows, found.Columns = pixels.shape[:2]
    found.SamplesPerPixel = 3 if pixels.ndim == 3 else 1
    found.PhotometricInterpretation = photometric
    found.BitsAllocated = found.BitsStored = 8 * pixels.dtype.itemsize
    found.HighBit, found.PixelRepresentation = found.BitsStored - 1, 0
    if pixels.ndim == 3:
        found.PlanarConfiguration = 0
    found.PixelData = pixels.tobytes()
    for name, value in tags.items():
        setattr(found, name, value)
    found.save_as(file, enforce_file_format=True)
    return file


def test_a_dicom_window_matches_pydicom(tmp_path: Path) -> None:
    tags = {"RescaleSlope": 0.1, "RescaleIntercept": -1024, "WindowCenter": 400, "WindowWidth": 1500}
    file = dicom(tmp_path / "a.dcm", RAMP, **tags)
    shown = apply_windowing(RAMP * 0.1 - 1024, pydicom.dcmread(file)).astype(np.float64)
    # pydicom's result spans the rescaled range of 16 bits.
    expected = (shown + 1024) / (65535 * 0.1) * 255
    found = read_image(file, (6, 8, 1))[:, :, 0]
    assert np.abs(found - expected).max() <= 0.51
    assert 0 in found
    assert 255 in found


def test_without_a_window_the_extremes_are_black_and_white(tmp_path: Path) -> None:
    pixels = (RAMP // 100 + 7).astype(np.uint16)
    found = read_image(dicom(tmp_path / "a.dcm", pixels), (6, 8, 1))
    assert (found.min(), found.max()) == (0, 255)
    assert found[0, 0, 0] == 0


def test_monochrome1_has_white_at_its_lowest_value(tmp_path: Path) -> None:
    tags = {"WindowCenter": 30000, "WindowWidth": 50000}
    one = read_image(dicom(tmp_path / "a.dcm", RAMP, "MONOCHROME1", **tags), (6, 8, 1))
    two = read_image(dicom(tmp_path / "b.dcm", RAMP, "MONOCHROME2", **tags), (6, 8, 1))
    assert np.array_equal(one, 255 - two)
    assert one[0, 0, 0] == 255


def test_color_dicom_is_rgb(tmp_path: Path) -> None:
    pixels = np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3)
    file = dicom(tmp_path / "a.dcm", pixels, "RGB")
    assert np.array_equal(read_image(file, (6, 8, 3)), pixels)
    assert (image_size(file), image_channels(file)) == ((6, 8), 3)


def test_a_window_from_the_config_takes_precedence(tmp_path: Path) -> None:
    file = dicom(tmp_path / "a.dcm", RAMP, WindowCenter=400, WindowWidth=100)
    found = read_image(file, (6, 8, 1), window=(0, 65535))[:, :, 0]
    assert np.array_equal(found, np.rint(RAMP / 257))


@pytest.mark.parametrize("layout", ["pages", "samples", "planes"])
def test_pages_and_samples_of_a_tiff_are_channels(layout: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 65536, (6, 8, 5)).astype(np.uint16)
    file = tmp_path / "a.tif"
    if layout == "pages":
        tifffile.imwrite(file, pixels.transpose(2, 0, 1), photometric="minisblack")
        assert image_channels(file) == 5
    elif layout == "samples":
        tifffile.imwrite(file, pixels, photometric="minisblack", planarconfig="contig")
    else:
        tifffile.imwrite(file, pixels.transpose(2, 0, 1), photometric="minisblack", planarconfig="separate")
    assert np.array_equal(read_image(file, (6, 8, 5)), np.rint(pixels / 257))


def test_a_16_bit_tiff_has_a_window(tmp_path: Path) -> None:
    values = (RAMP // 16).astype(np.uint16)  # 12 bits in 16
    Image.fromarray(values).save(tmp_path / "a.tif")
    whole = read_image(tmp_path / "a.tif", (6, 8, 1))
    twelve = read_image(tmp_path / "a.tif", (6, 8, 1), window=(0, 4095))
    each = read_image(tmp_path / "a.tif", (6, 8, 1), window="each")
    assert whole.max() == 16
    assert np.array_equal(twelve[:, :, 0], np.rint(values / 4095 * 255))
    assert np.array_equal(each, twelve)


@pytest.mark.parametrize("first", [True, False])
def test_arrays_have_channels_first_or_last(first: bool, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 24, 5)).astype(np.uint8)
    np.save(tmp_path / "a.npy", pixels.transpose(2, 0, 1) if first else pixels)
    file = tmp_path / "a.npy"
    assert (image_size(file), image_channels(file)) == ((20, 24), 5)
    assert np.array_equal(read_image(file, (20, 24, 5)), pixels)


def test_arrays_are_resized_like_photos(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 24, 3)).astype(np.uint8)
    np.save(tmp_path / "a.npy", pixels)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    array, photo = (read_image(tmp_path / f"a.{kind}", (8, 9, 3)) for kind in ("npy", "png"))
    assert np.abs(array.astype(int) - photo).max() <= 1


def test_a_window_is_ordered() -> None:
    with pytest.raises(ValueError, match="BLACK < WHITE"):
        DataConfig(window=(5.0, 5.0))


@pytest.mark.parametrize(
    ("values", "window", "expected"),
    [
        (np.array([0.0, 0.5, 1.0]), (0, 1), [0, 128, 255]),
        (np.array([-100, 0, 100], dtype=np.int16), (-100, 100), [0, 128, 255]),
        (np.array([-200, 300], dtype=np.int32), (-100, 100), [0, 255]),
        (np.array([7, 7]), "each", [0, 0]),
        (np.array([False, True]), "auto", [0, 255]),
        (np.array([3, 200], dtype=np.uint8), (0, 1), [3, 200]),
    ],
)
def test_values_become_bytes(values: np.ndarray, window: Any, expected: list[int]) -> None:
    assert to_bytes(values, window).tolist() == expected


@pytest.mark.parametrize(
    ("values", "channels", "text"),
    [
        (np.zeros((4, 4)), 1, r"float pixels have no fixed range; set data\.window"),
        (np.zeros((4, 4), dtype=np.int64), 1, "64-bit pixels have no fixed range"),
        (np.zeros((4, 4, 4), dtype=np.uint8), 5, "has 4 channels, not 5"),
        (np.zeros((40, 40, 40), dtype=np.uint8), 3, r"shape \(40, 40, 40\)"),
        (np.array([[None]]), 1, "Python objects"),
    ],
)
def test_arrays_that_are_not_images(values: np.ndarray, channels: int, text: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(ValueError, match=text):
        read_image(tmp_path / "a.npy", (4, 4, channels))


def test_a_damaged_dicom_file_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.dcm").write_bytes(b"no DICOM" * 50)
    with pytest.raises(ValueError, match="InvalidDicomError"):
        read_image(tmp_path / "a.dcm", (4, 4, 1))
    file = dicom(tmp_path / "b.dcm", RAMP)
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"pixel data|bytes"):
        read_image(file, (6, 8, 1))
