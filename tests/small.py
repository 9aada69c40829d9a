"""A run of a second: a few digits, a narrow encoder."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import fedssl

SMALL: dict[str, Any] = {
    "data": {"name": "digits", "limit": 100},
    "partition": {"scheme": "classes", "clients": 5, "classes": 2},
    "model": {"width": 4, "projector_hidden": 16, "projector_out": 16, "predictor_hidden": 8},
    "train": {"batch_size": 16, "epochs": 1.0},
    "rounds": 3,
    "probe": {"every": 0, "protocol": "none"},
    "engine": {"threads": 1},
    "log": {"tensorboard": False},
}

# Objectives with their own generative model, which the method `padpaf` trains.
GENERATIVE = ("gan", "conditional-gan", "linear-gan", "linear-regression", "vae")

QUEUE = {"moco-v1": {"objective.queue": 32}, "moco-v2": {"objective.queue": 32}}


def small_run(out: Path, **overrides: Any) -> fedssl.Run:
    return fedssl.run(SMALL, out=out, quiet=True, **overrides)


def arguments(**overrides: Any) -> list[str]:
    """SMALL and the overrides as command-line arguments."""
    words = [
        f"{section}.{key}={value}"
        for section, keys in SMALL.items()
        if isinstance(keys, dict)
        for key, value in keys.items()
    ]
    words += [f"rounds={SMALL['rounds']}", *(f"{key}={value}" for key, value in overrides.items())]
    return [word.replace("=False", "=false").replace("=True", "=true") for word in words]


def digest(run: fedssl.Run | Path, file: str = "encoder.safetensors") -> str:
    path = run if isinstance(run, Path) else run.path
    return hashlib.sha256((path / file).read_bytes()).hexdigest()
