"""TensorBoard and Weights & Biases, where they are installed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from fedssl.errors import ConfigError
from fedssl.extras import installed
from fedssl.listener import Listener, RunInfo


def scalars(line: dict[str, Any]) -> dict[str, float]:
    """The numbers of a round that make curves."""
    shown = ("loss", "divergence", "seconds")
    curves: dict[str, float] = {name: float(line[name]) for name in shown if name in line}
    curves |= {f"probe/{name}": float(value) for name, value in line.get("probe", {}).items()}
    curves["failed"] = float(len(line["failed"]))
    return curves


class TensorBoard(Listener):
    """Event files in RUN/tensorboard; does nothing where the package is not installed."""

    def __init__(self) -> None:
        self._writer: Any = None
        self._folder: Path | None = None

    def started(self, info: RunInfo) -> None:
        if info.config.log.tensorboard and installed("tensorboard"):
            self._folder = info.path / "tensorboard"

    def round(self, line: dict[str, Any]) -> None:
        if self._folder is None:
            return
        if self._writer is None:  # imported only now: it takes a second, and training has begun
            self._writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(self._folder))
        for name, value in scalars(line).items():
            self._writer.add_scalar(name, value, line["round"])

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases(Listener):
    """A run of the project `log.wandb`."""

    def __init__(self) -> None:
        self._run: Any = None

    def started(self, info: RunInfo) -> None:
        project = info.config.log.wandb
        if not project:
            return
        if not installed("wandb"):
            raise ConfigError("log.wandb needs the package wandb: pip install 'fedssl[wandb]'")
        self._run = importlib.import_module("wandb").init(
            project=project, name=info.path.name, config=info.config.to_dict(), dir=str(info.path)
        )

    def round(self, line: dict[str, Any]) -> None:
        if self._run is not None:
            self._run.log(scalars(line), step=line["round"])

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
