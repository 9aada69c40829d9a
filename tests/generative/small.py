"""Runs of a second with each kind of generative model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fedssl

COMMON: dict[str, Any] = {
    "method": {"name": "padpaf"},
    "server": {"optimizer": "adam", "lr": 0.01, "beta1": 0.5, "beta2": 0.9, "decay": 0.99},
    "train": {"optimizer": "adam", "lr": 1e-3, "schedule": "constant", "weight_decay": 0, "batch_size": 10},
    "rounds": 2,
    "probe": {"every": 0, "protocol": "none"},
    "engine": {"threads": 1},
    "log": {"tensorboard": False},
}
IMAGES: dict[str, Any] = {
    **COMMON,
    "data": {"name": "digits", "limit": 60, "test_fraction": 0.05, "mean": 0.5, "std": 0.5},
    "partition": {"scheme": "iid", "clients": 2},
    "shift": {"name": "padpaf-mnist"},
    "model": {"projector_hidden": 8, "projector_out": 8},
}
SIZE = {"features": 8, "latent": 4, "blocks": 0}
KINDS: dict[str, dict[str, Any]] = {
    "gan": {**IMAGES, "objective": {"name": "gan", **SIZE}},
    "conditional-gan": {
        **IMAGES,
        "objective": {"name": "conditional-gan", **SIZE},
        "partition": {"scheme": "label-drop", "clients": 2},
    },
    "lens": {
        **IMAGES,
        "objective": {"name": "conditional-gan", **SIZE, "augmented": True, "lens": 1},
        "partition": {"scheme": "label-drop", "clients": 2},
    },
    "vae": {**IMAGES, "objective": {"name": "vae", **SIZE}},
    "linear-gan": {
        **COMMON,
        "objective": {"name": "linear-gan", "hidden": 4, "features": 4, "style_features": 4},
        "data": {"name": "simpson", "mean": 0.5, "std": 0.2},
        "partition": {"scheme": "domain"},
    },
}


def run_of(kind: str, out: Path, **overrides: Any) -> fedssl.Run:
    return fedssl.run(KINDS[kind], out=out, quiet=True, **overrides)
