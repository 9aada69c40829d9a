"""Pictures embedded in a page: thumbnails, sprites, and samples of generative runs."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]  # [H, W, C]

MOST_SAMPLES = 24
LARGE = 200_000  # bytes; larger files are resized to at most WIDTH pixels
WIDTH = 1000
LOSSLESS = 32  # smaller pictures are not resized


def collect(folder: Path, pattern: str = "*.png") -> list[dict[str, Any]]:
    """Return the PNG files in a folder, the last ones in natural order; unreadable ones are reported."""
    files = sorted(folder.rglob(pattern), key=_natural)
    found: list[dict[str, Any]] = []
    for file in files[-MOST_SAMPLES:]:
        name = str(file.relative_to(folder).with_suffix(""))
        try:
            found.append({"name": name, "uri": _file(file)})
        except (OSError, Image.DecompressionBombError) as error:
            found.append({"name": name, "uri": "", "why_not": str(error)})
    return found


def _natural(file: Path) -> list[tuple[int, str]]:
    """Sort round-9 before round-10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(file))]


def _file(file: Path) -> str:
    with Image.open(file) as image:
        image.load()
        if file.stat().st_size <= LARGE:
            return uri(file.read_bytes(), "png")
        small = image.convert("RGB")
        small.thumbnail((WIDTH, WIDTH))
        return encoded(small, "JPEG")


def thumbnail(pixels: Pixels, side: int) -> str:
    """Return a data URI no larger than side × side."""
    image = _image(pixels)
    image.thumbnail((side, side))
    return encoded(image, "PNG" if max(image.size) <= LOSSLESS else "JPEG")


def sprite(images: list[Pixels], side: int) -> dict[str, Any]:
    """Join many small pictures into one, row by row."""
    columns = max(1, round(len(images) ** 0.5))
    side = min(side, max(images[0].shape[:2]))
    sheet = Image.new("RGB", (columns * side, -(-len(images) // columns) * side))
    for place, pixels in enumerate(images):
        image = _image(pixels).convert("RGB").resize((side, side))
        sheet.paste(image, (place % columns * side, place // columns * side))
    return {"uri": encoded(sheet, "JPEG"), "side": side, "columns": columns}


def _image(pixels: Pixels) -> Image.Image:
    """Keep the first three of more channels, as red, green and blue."""
    return Image.fromarray(pixels[:, :, :3] if pixels.shape[2] >= 3 else pixels[:, :, 0])


def encoded(image: Image.Image, kind: str) -> str:
    file = io.BytesIO()
    options = {"quality": 72} if kind == "JPEG" else {"optimize": True}
    image.save(file, kind, **options)
    return uri(file.getvalue(), kind.lower())


def uri(content: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
