"""A run as Python sees it: `run = fedssl.run(objective="byol", method="fedema", data="digits")`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from fedssl import experiment
from fedssl.config import Config, load
from fedssl.evaluation.protocol import evaluate
from fedssl.listener import Listener, Listeners
from fedssl.models.describe import rebuild
from fedssl.report.console import ConsoleListener
from fedssl.report.trackers import TensorBoard, WeightsAndBiases
from fedssl.rundir import RunDir
from fedssl.storage import load_tensors
from fedssl.trust import trusting


class Run:
    """A finished (or stopped) run directory.

    Args:
        path: the run's folder.
        trust: run Python files that its config names, also those that you have not run before.
    """

    def __init__(self, path: str | Path, trust: bool = False) -> None:
        self.directory, self.trust = RunDir.open(path), trust

    @property
    def path(self) -> Path:
        return self.directory.path

    @cached_property
    def config(self) -> Config:
        with trusting(self.trust):
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
        """Evaluate the run.

        Args:
            protocol: a name in `fedssl list protocols`, or a class of yours: "./file.py:Class".
            **options: config keys, such as `**{"probe.form": "epochs"}`, and the protocol's own fields as
                `protocol.KEY`.

        Returns:
            What the protocol found; it is also appended to evaluations.jsonl.
        """
        with trusting(self.trust):
            return evaluate(self.directory, protocol, options)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"


def run(
    config: str | Path | Mapping[str, Any] | Config | None = None,
    *,
    out: str | Path | None = None,
    quiet: bool = False,
    listeners: Sequence[Listener] = (),
    **overrides: Any,
) -> Run:
    """Train a federation and probe its encoder.

    Args:
        config: a TOML file, a mapping, or a `Config`.
        out: the run's folder; default: runs/DATA-OBJECTIVE-METHOD.
        quiet: print nothing.
        listeners: callbacks, called in this order after those of the console and of trackers.
        **overrides: sections and keys, such as `rounds=50`, `method={"name": "fedema", "tau": 0.5}` or
            `**{"train.lr": 0.1}`.

    Returns:
        The finished run.
    """
    settings = config.to_dict() if isinstance(config, Config) else config
    directory = experiment.run(load(settings, overrides), out, all_listeners(quiet, listeners))
    return Run(directory.path)


def resume(
    path: str | Path, *, quiet: bool = False, listeners: Sequence[Listener] = (), trust: bool = False
) -> Run:
    """Continue a run from its last checkpoint; a run that has finished is left as it is.

    Args:
        path: the run's folder.
        quiet: print nothing.
        listeners: callbacks; those that were given to `run` are not stored, so pass them again.
        trust: run Python files that its config names, also those that you have not run before.
    """
    with trusting(trust):
        return Run(experiment.resume(path, all_listeners(quiet, listeners)).path, trust)


def all_listeners(quiet: bool, own: Sequence[Listener] = ()) -> Listener:
    """The console's and the trackers' listeners, then the user's."""
    shown: list[Listener] = [] if quiet else [ConsoleListener()]
    return Listeners([*shown, TensorBoard(), WeightsAndBiases(), *own])
