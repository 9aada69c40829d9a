"""Versions that must be equal at a server and its sites."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

import torch

from fedssl._version import __version__


@lru_cache(maxsize=1)
def versions() -> dict[str, str]:
    """Versions by name: fedssl, PyTorch without its build, and the keys that a config may have."""
    return {"fedssl": __version__, "PyTorch": torch.__version__.split("+")[0], "config schema": schema_id()}


def schema_id() -> str:
    """A short hash of the names of all sections and of the keys of those that are not chosen by name."""
    from fedssl.config import SECTIONS, Config

    keys = {
        name: [] if section.chosen else sorted(section.options().model_fields)
        for name, section in SECTIONS.items()
    }
    text = json.dumps([sorted(Config.model_fields), keys], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]
