"""Hypothesis strategies for bad input: damaged files, absurd values, random bytes."""

from __future__ import annotations

import io
import json
from functools import cache
from typing import Any

import numpy as np
import tomli_w
import torch
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save

from fedssl.config import SECTIONS, Config, load
from tests.small import SMALL

NUMBERS = [0, 1, -1, 2, 3, 7, 255, 10**4, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 10**30, 10**400]
FLOATS = [0.0, -0.0, 1e-300, 0.5, 1.0, 1e6, 1e300, -1e300, float("inf"), float("-inf"), float("nan")]
TEXTS = [
    "",
    "0",
    "nan",
    "x" * 300,
    "../" * 40,
    "/dev/zero",
    "a\0b",
    "é",
    "💥",
    "none",
    "auto",
    "cuda:99",
    "-",
]

values = st.recursive(
    st.sampled_from([*NUMBERS, *FLOATS, *TEXTS, True, False])
    | st.integers()
    | st.floats()
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


# --- damaged files ----------------------------------------------------------------------------------

INTERESTING = [
    b"\0",
    b"\xff",
    b"\0" * 8,
    b"\xff" * 8,
    b"\x7f\xff\xff\xff",
    b"\n",
    b'"',
    b"{",
    b"[" * 50,
    b"-1",
]


@st.composite
def damaged(draw: st.DrawFn, originals: dict[str, bytes]) -> tuple[str, bytes]:
    """The name of one of these files, and its content with some changes; sometimes just any bytes."""
    name = draw(st.sampled_from(sorted(originals)))
    if draw(st.integers(0, 9)) == 0:
        return name, draw(st.binary(max_size=200))
    content = bytearray(originals[name])
    for _ in range(draw(st.integers(1, 6))):
        # Headers decide what a reader does: every second change is in the first bytes.
        reach = min(len(content), 128) if draw(st.booleans()) else len(content)
        place = draw(st.integers(0, max(0, reach - 1)))
        change = draw(st.sampled_from(["flip", "write", "insert", "delete", "cut", "repeat"]))
        if change == "flip" and content:
            content[place] ^= 1 << draw(st.integers(0, 7))
        elif change in ("write", "insert"):
            piece = draw(st.sampled_from(INTERESTING) | st.binary(min_size=1, max_size=8))
            content[place : place + (len(piece) if change == "write" else 0)] = piece
        elif change == "delete":
            del content[place : place + draw(st.integers(1, 64))]
        elif change == "cut":
            del content[place:]
        else:
            content[place:place] = content[place : place + 64] * draw(st.integers(1, 20))
    return name, bytes(content)


@cache
def images() -> dict[str, bytes]:
    """An image of every kind that can be read."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (12, 10, 3), dtype=np.uint8)
    kinds = {"png": {}, "jpeg": {}, "gif": {}, "bmp": {}, "webp": {}, "tiff": {"compression": "tiff_lzw"}}
    found = {}
    for kind, options in kinds.items():
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, kind, **options)
        found[f"bad.{kind.replace('jpeg', 'jpg')}"] = stream.getvalue()
    stream = io.BytesIO()
    Image.fromarray(pixels[..., 0].astype(np.uint16) * 200).save(stream, "png")
    found["bad16.png"] = stream.getvalue()
    for name, array in (("a", pixels), ("f", rng.random((9, 9))), ("c", pixels.transpose(2, 0, 1))):
        found[f"bad-{name}.npy"] = npy(array)
    found["bad.dcm"] = dicom(pixels[..., 0])
    return found


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def dicom(pixels: Any) -> bytes:
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=["fuzz"])
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    image = Dataset()
    image.file_meta = meta
    image.Rows, image.Columns = pixels.shape
    image.SamplesPerPixel, image.PhotometricInterpretation = 1, "MONOCHROME2"
    image.BitsAllocated = image.BitsStored = 8
    image.HighBit, image.PixelRepresentation = 7, 0
    image.WindowCenter, image.WindowWidth = 100, 50
    image.PixelData = pixels.tobytes()
    stream = io.BytesIO()
    image.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


@cache
def archives() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    full = {
        "x": rng.integers(0, 256, (6, 4, 4, 3), dtype=np.uint8),
        "y": np.arange(6) % 2,
        "classes": np.array(["cat", "dog"]),
        "domain": np.zeros(6, dtype=np.int64),
        "domains": np.array(["here"]),
    }
    found = {}
    for name, save_as, keys in (("plain", np.savez, full), ("packed", np.savez_compressed, full)):
        stream = io.BytesIO()
        save_as(stream, **keys)
        found[f"{name}.npz"] = stream.getvalue()
    return found


@cache
def tables() -> dict[str, bytes]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = {
        "path": ["a.png", "b.png", "fifo.png"],
        "site": ["here", "there", ""],
        "label": ["cat", "dog", "cat"],
        "split": ["train", "test", "train"],
    }
    text = "\n".join([",".join(rows), *(",".join(row) for row in zip(*rows.values(), strict=True))]) + "\n"
    stream = io.BytesIO()
    pq.write_table(pa.table(rows), stream)
    return {"table.csv": text.encode(), "table.parquet": stream.getvalue()}


@cache
def configs() -> dict[str, bytes]:
    plain = tomli_w.dumps(load(SMALL).to_dict())
    sections = "[data]\nname = 'npz'\n[train]\nlr = 0.1\nmilestones = [0.5]\n"
    return {"full.toml": plain.encode(), "short.toml": sections.encode()}


# --- configs ----------------------------------------------------------------------------------------


@cache
def keys() -> list[str]:
    """Every key of every part that can be chosen."""
    found = [name for name in Config.model_fields if name not in SECTIONS]
    for name, section in SECTIONS.items():
        parts = [section.registry().get(part) for part in section.registry()] if section.chosen else []
        for part in parts or [section.options()]:
            found += [f"{name}.{key}" for key in part.model_fields]
    return sorted(set(found))


def extremes(known: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    """One or two keys at or beyond the limits of their values; many of these are valid."""
    ends = st.sampled_from([*NUMBERS, *FLOATS, 4, 5, 17, 64, 1024, 0.1, True, "none", "auto"])
    return st.dictionaries(st.sampled_from(known), ends, min_size=1, max_size=2)


def overrides(known: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Keys of a config with invalid or borderline values."""
    odd = st.text(max_size=8) | st.sampled_from(["data", "train.lr.x", "method", "a.b.c", ".", "train."])
    return st.dictionaries(st.sampled_from(known) | odd, values, min_size=1, max_size=3)


# --- messages from sites ----------------------------------------------------------------------------


def expected() -> dict[str, torch.Tensor]:
    return {
        "conv": torch.ones(4, 3, 3, 3),
        "norm.running_var": torch.ones(4),
        "norm.num_batches_tracked": torch.tensor(3),
    }


@cache
def uploads() -> dict[str, bytes]:
    return {"upload": save(expected())}


@st.composite
def replies(draw: st.DrawFn) -> tuple[str, bytes]:
    """The text and the tensors of an answer to a task."""
    said: Any = {"views": 3, "seconds": 0.5, "num_samples": 7, "loss": 0.3, "values": {"divergence": 0.1}}
    for _ in range(draw(st.integers(0, 2))):
        key = draw(st.sampled_from([*said, "failure", "remembers", "client"]) | st.text(max_size=5))
        said[key] = draw(values)
    text = json.dumps(said, default=str)
    if draw(st.integers(0, 4)) == 0:
        text = draw(st.text(max_size=50) | st.sampled_from(["[" * 10**5, "1" * 5000, "null", "[]"]))
    content = draw(damaged(uploads()))[1] if draw(st.booleans()) else draw(absurd_tensors())
    return text, content


@st.composite
def absurd_tensors(draw: st.DrawFn) -> bytes:
    """Tensors of an upload, one of them replaced by something else."""
    state: dict[str, torch.Tensor] = expected()
    name = draw(st.sampled_from([*state, "another"]))
    kind = draw(st.sampled_from([torch.float32, torch.float16, torch.float64, torch.int64, torch.uint8]))
    shape = draw(st.sampled_from([(), (0,), (4,), (1, 4), (4, 3, 3, 3), (2, 0)]))
    number = draw(st.sampled_from([0.0, -1.0, 1e30, 1e308, float("nan"), float("inf"), -1e-30]))
    if kind.is_floating_point:
        state[name] = torch.full(shape, 1.0, dtype=torch.float64).mul(number).to(kind)
    else:
        state[name] = torch.full(shape, draw(st.sampled_from([0, 1, 255])), dtype=kind)
    return save(state)
