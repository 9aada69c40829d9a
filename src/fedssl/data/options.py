"""Config section `data`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from fedssl.data import DATASETS
from fedssl.data.images import MOST_CHANNELS
from fedssl.options import Options

Window = Literal["auto", "each"] | tuple[float, float]
Positive = Annotated[float, Field(gt=0)]


class DataConfig(Options):
    name: str = Field("digits", description="data set (see `fedssl list datasets`)")
    root: str = Field("", description="file or folder: for npz, folder and manifest, and where downloads go")
    limit: int = Field(0, ge=0, description="size of a seeded stratified subset of the images; 0: all")
    size: int = Field(
        0,
        ge=0,
        description="side in pixels that images are resized to; 0: as they are (folders of mixed or large "
        "sizes: the median side, at most 224; celeba: 64)",
    )
    resize: Literal["squash", "crop"] = Field(
        "squash",
        description="of images that are not square: squash changes the aspect ratio, crop keeps the square "
        "in the middle",
    )
    channels: int = Field(
        0, ge=0, le=MOST_CHANNELS, description="1 grey, 3 colour, up to 16; 0: as they are (photos: 3)"
    )
    window: Window = Field(
        "auto",
        description="values of 16-bit, floating-point and DICOM pixels that become black and white: "
        "[BLACK,WHITE]; auto: a DICOM file's own window, or all 16 bits; each: the extremes of each image",
    )
    layout: Literal["auto", "site"] = Field(
        "auto",
        description="of a folder. auto: image, class/image or style/class/image; site: site/image or "
        "site/class/image (partition.scheme=folder implies it)",
    )
    columns: str = Field(
        "", description="of a manifest, where they have other names: path=COLUMN,site=COLUMN,label=…,split=…"
    )
    split: str = Field("", description="Hugging Face: TRAIN/TEST; stl10: train, unlabeled, train+unlabeled")
    test_fraction: float = Field(0.2, gt=0, lt=1, description="test share of a set that brings no test split")
    holdout: float = Field(
        0.0, ge=0, lt=1, description="labelled share kept out of pre-training (for eval --protocol semi)"
    )
    memory_mb: int = Field(4096, ge=1, description="larger sets are read from a memory-mapped cache")
    mean: float | tuple[float, ...] = Field(
        0.5, description="subtracted from pixels in [0,1]; one number, or a list with one for each channel"
    )
    std: Positive | tuple[Positive, ...] = Field(
        0.25, description="pixels are divided by it; one number, or a list with one for each channel"
    )

    @field_validator("window")
    @classmethod
    def _is_ordered(cls, window: Window) -> Window:
        if not isinstance(window, str) and not window[0] < window[1]:
            raise ValueError("[BLACK,WHITE] needs BLACK < WHITE")
        return window

    @field_validator("name")
    @classmethod
    def _may_be_loaded(cls, name: str) -> str:
        """Capitals are forgiven; a function of the user's has to be trusted."""
        if ":" in name:
            DATASETS.check(name)
            return name
        return "+".join(DATASETS.canonical(part) for part in name.split("+"))
