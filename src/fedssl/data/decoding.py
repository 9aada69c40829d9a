"""Decode one image file to uint8: photos, TIFF with several pages, NumPy arrays, DICOM.

Color becomes RGB, or gray if `data.channels` is 1. Transparent pixels become white, the Exif orientation is
applied, and animations give their first frame. Pixels of more than 8 bits are scaled by a window of values;
DICOM files contain their own.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch.nn import functional as F

from fedssl.data.images import MOST_CHANNELS
from fedssl.data.options import Window
from fedssl.limits import check_regular, check_values, load_npy, npy_shape

Pixels = NDArray[np.uint8]

ARRAYS, DICOM, TIFF = (".npy",), (".dcm", ".dicom"), (".tif", ".tiff")
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", *TIFF, *ARRAYS, *DICOM)
ORIENTATION = 0x0112  # Exif tag; its values 2..8 are undone by these
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
LUMA = (0.299, 0.587, 0.114)  # ITU-R 601


def read_image(
    file: Path | IO[bytes], shape: tuple[int, int, int], square: bool = False, window: Window = "auto"
) -> Pixels:
    """Decode one image, upright, to height × width × channels.

    Args:
        file: a path, whose suffix determines the format, or an open photo.
        shape: height, width and channels of the result.
        square: crop to the largest central square.
        window: the values that become black and white. `auto`: a DICOM file's own window, or all 16 bits;
            `each`: the minimum and maximum of the image.

    Raises:
        ValueError, OSError: the file cannot be read; the message says why.
    """
    height, width, channels = shape
    suffix = _suffix(file)
    if suffix in (*ARRAYS, *DICOM) or (suffix in TIFF and channels not in (1, 3)):
        try:
            pixels = _with_channels(_array(file, suffix, window), channels)
        except (OSError, ValueError, MemoryError):
            raise
        except Exception as error:  # pydicom and tifffile raise nearly anything on damaged files
            raise ValueError(f"{type(error).__name__}: {error}") from error
        return _resized(_middle(pixels) if square else pixels, height, width)
    if channels not in (1, 3):
        raise ValueError(f"a photo has 1 or 3 channels, not {channels}")
    try:
        with Image.open(file) as image:
            # Decode JPEG at 1/2, 1/4 or 1/8 if that leaves twice the size needed.
            image.draft(None, (2 * max(height, width), 2 * max(height, width)))
            image.load()
            picture = _upright(image)
    except UnidentifiedImageError:
        raise ValueError("not an image") from None
    if square:
        side = min(picture.size)
        left, top = (picture.width - side) // 2, (picture.height - side) // 2
        picture = picture.crop((left, top, left + side, top + side))
    picture = _opaque(picture, window).convert("L" if channels == 1 else "RGB")
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(picture).reshape(shape)


def image_size(file: Path | IO[bytes]) -> tuple[int, int]:
    """Height and width of the upright image, from its header."""
    suffix = _suffix(file)
    if suffix in ARRAYS:
        shape = _array_shape(_stored_shape(file))
        return shape[0], shape[1]
    if suffix in DICOM:
        header = _package("pydicom").dcmread(file, stop_before_pixels=True)
        return int(header.Rows), int(header.Columns)
    with Image.open(file) as image:
        # Pillow applies the orientation of TIFF files itself.
        turned = image.format != "TIFF" and image.getexif().get(ORIENTATION, 1) >= 5
        return (image.width, image.height) if turned else (image.height, image.width)


def image_channels(file: Path) -> int:
    """The default number of channels of a file: 3 for photos, all channels of other files."""
    suffix = _suffix(file)
    if suffix in ARRAYS:
        return _array_shape(_stored_shape(file))[2]
    if suffix in DICOM:
        return int(_package("pydicom").dcmread(file, stop_before_pixels=True).get("SamplesPerPixel", 1))
    if suffix in TIFF:
        with Image.open(file) as image:
            pages, bands = getattr(image, "n_frames", 1), len(image.getbands())
        return pages * bands if pages > 1 and pages * bands <= MOST_CHANNELS else 3
    return 3


def _suffix(file: Path | IO[bytes]) -> str:
    """The suffix of a file; a ValueError if it is a pipe or a device."""
    if not isinstance(file, Path):
        return ""
    check_regular(file)
    return file.suffix.lower()


def _stored_shape(file: Any) -> tuple[int, ...]:
    with open(file, "rb") as opened:
        return npy_shape(opened, os.fstat(opened.fileno()).st_size)


# --- arrays: DICOM, NumPy, TIFF with several channels ------------------------------------------------


def _array(file: Any, suffix: str, window: Window) -> Pixels:
    """[H, W, C] with the channels that the file has."""
    if suffix in DICOM:
        return _dicom(file, window)
    values = _pages(file) if suffix in TIFF else load_npy(file)
    height, width, channels = _array_shape(values.shape)
    if values.ndim == 3 and values.shape != (height, width, channels):
        values = values.transpose(1, 2, 0)
    return to_bytes(values.reshape(height, width, channels), window)


def _array_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Height, width and channels of an array [H, W], [H, W, C] or [C, H, W]."""
    if len(shape) == 2:
        return shape[0], shape[1], 1
    if len(shape) == 3 and shape[2] <= MOST_CHANNELS:
        return shape[0], shape[1], shape[2]
    if len(shape) == 3 and shape[0] <= MOST_CHANNELS:
        return shape[1], shape[2], shape[0]
    raise ValueError(f"shape {shape}: [H, W], [H, W, C] or [C, H, W] with C ≤ {MOST_CHANNELS} is needed")


def _pages(file: Path) -> NDArray[Any]:
    """All pages and samples of a TIFF file as channels: [H, W, C]."""
    with _package("tifffile").TiffFile(file) as opened:
        series = opened.series[0]
        check_values(tuple(series.shape))
        values, axes = np.asarray(series.asarray()), series.axes
    values = np.moveaxis(values, (axes.index("Y"), axes.index("X")), (0, 1))
    return values.reshape(*values.shape[:2], -1)


def _dicom(file: Path, window: Window) -> Pixels:
    """The first frame: gray by its window (white where MONOCHROME1 has its lowest value), or RGB."""
    pydicom = _package("pydicom")
    found = pydicom.dcmread(file)
    check_values((int(found.get("NumberOfFrames", 1) or 1), int(found.Rows), int(found.Columns)))
    values = np.asarray(found.pixel_array)
    values = values[0] if int(found.get("NumberOfFrames", 1) or 1) > 1 else values
    kind = str(found.PhotometricInterpretation)
    if kind == "PALETTE COLOR":
        return to_bytes(np.asarray(pydicom.pixels.apply_color_lut(values, found)), "auto")
    if values.ndim == 3:
        return to_bytes(values, window)  # pydicom has made RGB of YBR
    values = np.asarray(pydicom.pixels.apply_modality_lut(values, found), dtype=np.float64)
    gray = to_bytes(values, window) if window != "auto" else _own_window(values, found, pydicom)
    return (255 - gray if kind == "MONOCHROME1" else gray)[:, :, None]


def _own_window(values: NDArray[np.float64], found: Any, pydicom: Any) -> Pixels:
    """Gray values by the first window or table of a DICOM file; by its extremes if it has neither."""
    if "VOILUTSequence" in found:
        bits = int(found.VOILUTSequence[0].LUTDescriptor[2])
        table = pydicom.pixels.apply_voi_lut(values.astype(np.int64), found)
        return to_bytes(np.asarray(table, dtype=np.float64), (0, 2**bits - 1))
    if "WindowCenter" not in found or "WindowWidth" not in found:
        return to_bytes(values, "each")
    center, width = _first(found.WindowCenter), _first(found.WindowWidth)
    function = str(found.get("VOILUTFunction", "LINEAR")).upper()
    if function == "SIGMOID":
        return np.rint(255 / (1 + np.exp(-4 * (values - center) / width))).astype(np.uint8)
    # DICOM PS3.3, C.11.2.1.2: LINEAR reaches its ends half a value within the window's.
    low, high = center - width / 2, center + width / 2
    return to_bytes(values, (low, high - 1) if function == "LINEAR" and width > 1 else (low, high))


def _first(value: Any) -> float:
    """The first of one or several numbers."""
    return float(value[0] if hasattr(value, "__getitem__") else value)


def to_bytes(values: NDArray[Any], window: Window) -> Pixels:
    """Values as uint8, black to white; 8-bit pixels stay as they are."""
    if values.dtype == np.uint8:
        return values.astype(np.uint8, copy=False)
    if window == "auto":
        window = _full_range(values)
    elif window == "each":
        window = float(values.min()), float(values.max())
    low, high = window
    if not np.isfinite(values).all():
        raise ValueError("some pixels are NaN or infinite")
    share = (values.astype(np.float64) - low) / max(high - low, np.finfo(np.float64).tiny)
    scaled: Pixels = np.rint(share.clip(0, 1) * 255).astype(np.uint8)
    return scaled


def _full_range(values: NDArray[Any]) -> tuple[float, float]:
    """The range of a pixel type that defines black and white; a ValueError for other types."""
    if values.dtype == np.bool_:
        return 0.0, 1.0
    if values.dtype == np.uint16:
        return 0.0, 65535.0
    remedy = "set data.window=[BLACK,WHITE], or data.window=each"
    if values.dtype.kind == "f":
        raise ValueError(f"float pixels have no fixed range; {remedy}")
    raise ValueError(f"{8 * values.dtype.itemsize}-bit pixels have no fixed range; {remedy}")


def _with_channels(pixels: Pixels, channels: int) -> Pixels:
    """Convert gray to any number of channels, or color to gray; other numbers must match."""
    found = pixels.shape[2]
    if found == channels:
        return pixels
    if found == 1:
        return pixels.repeat(channels, axis=2)
    if (found, channels) == (3, 1):
        gray: Pixels = np.rint(pixels @ np.array(LUMA)).astype(np.uint8)
        return gray[:, :, None]
    raise ValueError(f"has {found} channels, not {channels}")


def _middle(pixels: Pixels) -> Pixels:
    side = min(pixels.shape[:2])
    top, left = (pixels.shape[0] - side) // 2, (pixels.shape[1] - side) // 2
    return pixels[top : top + side, left : left + side]


def _resized(pixels: Pixels, height: int, width: int) -> Pixels:
    if pixels.shape[:2] == (height, width):
        return np.ascontiguousarray(pixels)
    planes = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))).float().unsqueeze(0)
    scaled = F.interpolate(planes, (height, width), mode="bilinear", antialias=True, align_corners=False)
    result: Pixels = scaled[0].round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
    return result


def _package(name: str) -> Any:
    import importlib

    try:
        if name == "pydicom":
            importlib.import_module("pydicom.pixels")
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(f"needs {name}: pip install 'fedssl[images]'") from None


# --- photos ----------------------------------------------------------------------------------------


def _upright(image: Image.Image) -> Image.Image:
    turn = UPRIGHT.get(image.getexif().get(ORIENTATION, 1))
    return image.copy() if turn is None else image.transpose(turn)


def _opaque(image: Image.Image, window: Window) -> Image.Image:
    """Remove transparency, and convert to 8 bits."""
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image)
        if values.dtype == np.int32 and values.min() >= 0 and values.max() <= 65535:
            values = values.astype(np.uint16)
        return Image.fromarray(to_bytes(values, window))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image
