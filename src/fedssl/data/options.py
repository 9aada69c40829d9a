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
    root: str = Field("", description="file or folder of npz, folder and manifest; folder for downloads")
    limit: int = Field(0, ge=0, description="size of a seeded stratified subset of the images; 0: all")
    size: int = Field(
        0,
        ge=0,
        le=16384,
        description="side in pixels that images are resized to; 0: unchanged (folders of mixed or large "
        "sizes: the median side, at most 224; celeba: 64)",
    )
    resize: Literal["squash", "crop"] = Field(
        "squash",
        description="how images that are not square are resized: squash changes the aspect ratio, crop "
        "keeps the central square",
    )
    channels: int = Field(
        0, ge=0, le=MOST_CHANNELS, description="1 gray, 3 color, up to 16; 0: unchanged (photos: 3)"
    )
    window: Window = Field(
        "auto",
        description="values of 16-bit, floating-point and DICOM pixels that become black and white: "
        "[BLACK,WHITE]; auto: a DICOM file's own window, or all 16 bits; each: the extremes of each image",
    )
    layout: Literal["auto", "site"] = Field(
        "auto",
        description="structure of a folder. auto: image, class/image or style/class/image; site: site/image "
        "or site/class/image (implied by partition.scheme=folder)",
    )
    columns: str = Field(
        "", description="column names of a manifest: path=COLUMN,site=COLUMN,label=COLUMN,split=COLUMN"
    )
    split: str = Field("", description="Hugging Face: TRAIN/TEST; stl10: train, unlabeled, train+unlabeled")
    test_fraction: float = Field(0.2, gt=0, lt=1, description="test share of data without a test split")
    holdout: float = Field(
        0.0, ge=0, lt=1, description="labeled share kept out of pre-training (for eval --protocol semi)"
    )
    memory_mb: int = Field(
        4096, ge=1, le=1 << 24, description="larger data are read from a memory-mapped cache"
    )
    mean: float | tuple[float, ...] = Field(
        0.5, description="mean of pixels in [0, 1] for normalization; one number, or one per channel"
    )
    std: Positive | tuple[Positive, ...] = Field(
        0.25, description="standard deviation for normalization; one number, or one per channel"
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
        """Ignore case; a user's function has to be trusted."""
        if ":" in name:
            DATASETS.check(name)
            return name
        return "+".join(DATASETS.canonical(part) for part in name.split("+"))
