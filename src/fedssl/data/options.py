"""Config section `data`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from fedssl.data import DATASETS
from fedssl.options import Options


class DataConfig(Options):
    name: str = Field("digits", description="data set (see `fedssl list datasets`)")
    root: str = Field("", description="file or folder: for npz and folder, and where downloads go")
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
    channels: Literal[0, 1, 3] = Field(0, description="1 grey, 3 colour; 0: as they are")
    split: str = Field("", description="Hugging Face: TRAIN/TEST; stl10: train, unlabeled, train+unlabeled")
    test_fraction: float = Field(0.2, gt=0, lt=1, description="test share of a set that brings no test split")
    holdout: float = Field(
        0.0, ge=0, lt=1, description="labelled share kept out of pre-training (for eval --protocol semi)"
    )
    memory_mb: int = Field(4096, ge=1, description="larger sets are read from a memory-mapped cache")
    mean: float = Field(0.5, description="subtracted from pixels in [0,1]")
    std: float = Field(0.25, gt=0, description="pixels are divided by it")

    @field_validator("name")
    @classmethod
    def _forgive_capitals(cls, name: str) -> str:
        return "+".join(DATASETS.canonical(part) for part in name.split("+"))
