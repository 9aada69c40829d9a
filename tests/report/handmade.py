"""Run directories written by hand, so that every number of a page is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedssl.config import load
from fedssl.storage import write_toml

# Two clients, three rounds. Client 1 fails in round 2.
METRICS: list[dict[str, Any]] = [
    {
        "round": 1,
        "loss": 4.5,
        "bytes_up": 200,
        "bytes_down": 400,
        "views": 100,
        "seconds": 2.0,
        "clients": [
            {"client": 0, "images": 30, "loss": 4.0, "mu": 0.25, "seconds": 0.5},
            {"client": 1, "images": 10, "loss": 6.0, "mu": 0.75, "seconds": 1.5},
        ],
        "failed": [],
        "probe": {"knn": 0.25, "feature_std": 0.5, "seconds": 0.1},
    },
    {
        "round": 2,
        "loss": 3.0,
        "bytes_up": 100,
        "bytes_down": 400,
        "views": 60,
        "seconds": 1.0,
        "clients": [{"client": 0, "images": 30, "loss": 3.0, "mu": 0.5, "seconds": 0.7}],
        "failed": [{"client": 1, "reason": "sent NaN in encoder.conv1.weight"}],
    },
    {
        "round": 3,
        "loss": 2.5,
        "bytes_up": 200,
        "bytes_down": 400,
        "views": 100,
        "seconds": 1.0,
        "clients": [
            {"client": 0, "images": 30, "loss": 2.0, "mu": 0.125, "seconds": 0.6},
            {"client": 1, "images": 10, "loss": 4.0, "mu": 0.375, "seconds": 0.5},
        ],
        "failed": [],
        "probe": {"knn": 0.75, "feature_std": 0.6, "seconds": 0.1},
    },
]


def entry(
    protocol: str, accuracy: float, untrained: float = 0.5, classes: Any = ("cat", "dog")
) -> dict[str, Any]:
    return {
        "protocol": protocol,
        "model": "global",
        "images": "pets: 40 train, 20 test",
        "accuracy": accuracy,
        "macro_f1": accuracy,
        "untrained": untrained,
        "gain": accuracy - untrained,
        "per_class": [
            {"class": name, "precision": 0.8, "recall": 0.7, "f1": 0.75, "count": 10} for name in classes
        ],
        "confusion": [[7, 3], [2, 8]],
    }


def result(*probes: dict[str, Any], why: str = "") -> dict[str, Any]:
    return {
        "probes": list(probes),
        "why_no_probes": why,
        "rounds": 3,
        "failures": 1,
        "views_per_second": 65.0,
        "seconds": 4.0,
        "peak_memory_mb": 512.0,
        "earth_movers_distance": 0.375,
        "versions": {},
    }


def partition(classes: Any = ("cat", "dog")) -> dict[str, Any]:
    """Client 0 has 30 cats, client 1 has 5 cats and 5 dogs."""
    held = {"class": {"names": list(classes), "counts": [{"0": 30}, {"0": 5, "1": 5}]}}
    return {
        "clients": 2,
        "sizes": [30, 10],
        "earth_movers_distance": 0.375 if classes else None,
        "holdings": held if classes else {},
        "indices": [[], []],
    }


def run_dir(
    path: Path,
    *,
    metrics: list[dict[str, Any]] | None = None,
    result: dict[str, Any] | None = None,
    partition: dict[str, Any] | None = None,
    **overrides: Any,
) -> Path:
    """A run directory with just the files that are given."""
    path.mkdir(parents=True)
    keys = {"rounds": 3, "method": "fedema", "objective": "byol", "partition.clients": 2, **overrides}
    write_toml(path / "config.toml", load(None, keys).to_dict())
    if metrics is not None:
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    for name, value in (("result", result), ("partition", partition)):
        if value is not None:
            (path / f"{name}.json").write_text(json.dumps(value))
    return path


def finished(path: Path, accuracy: float = 0.75, **overrides: Any) -> Path:
    probes = (entry("linear", accuracy), entry("knn", accuracy - 0.1))
    return run_dir(path, metrics=METRICS, result=result(*probes), partition=partition(), **overrides)
