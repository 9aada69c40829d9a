"""A run as Python sees it: `run = fedssl.run(objective="byol", method="fedema", data="digits")`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from fedssl import experiment
from fedssl.config import Config, load
from fedssl.evaluation.protocols import evaluate
from fedssl.listener import Listener, Listeners
from fedssl.models.describe import rebuild
from fedssl.report.console import ConsoleListener
from fedssl.report.trackers import TensorBoard, WeightsAndBiases
from fedssl.rundir import RunDir
from fedssl.storage import load_tensors


class Run:
    """A finished (or stopped) run directory."""

    def __init__(self, path: str | Path) -> None:
        self.directory = RunDir.open(path)

    @property
    def path(self) -> Path:
        return self.directory.path

    @cached_property
    def config(self) -> Config:
        return self.directory.config()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """A mapping per round."""
        return self.directory.metrics()

    @property
    def result(self) -> dict[str, Any]:
        return self.directory.result()

    @cached_property
    def encoder(self) -> nn.Module:
        """The trained encoder as a plain timm module, in evaluation mode."""
        module = rebuild(self.directory.encoder_description())
        state, _ = load_tensors(self.path / "encoder.safetensors")
        module.load_state_dict(state)
        return module.eval()

    def probe(self, protocol: str = "linear", **options: Any) -> dict[str, Any]:
        """One of the protocols of `fedssl eval`; options are config keys: `**{"probe.form": "epochs"}`."""
        return evaluate(self.directory, protocol, options)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


def run(
    config: str | Path | Mapping[str, Any] | Config | None = None,
    *,
    out: str | Path | None = None,
    quiet: bool = False,
    **overrides: Any,
) -> Run:
    """Train. `config` is a TOML file or a mapping; sections and keys follow as keyword arguments:

    fedssl.run(objective="byol", method={"name": "fedema", "tau": 0.5}, rounds=50, **{"train.lr": 0.1})
    """
    settings = config.to_dict() if isinstance(config, Config) else config
    directory = experiment.run(load(settings, overrides), out, listeners(quiet))
    return Run(directory.path)


def resume(path: str | Path, *, quiet: bool = False) -> Run:
    """Go on where a run was stopped."""
    return Run(experiment.resume(path, listeners(quiet)).path)


def listeners(quiet: bool) -> Listener:
    shown: list[Listener] = [] if quiet else [ConsoleListener()]
    return Listeners([*shown, TensorBoard(), WeightsAndBiases()])
