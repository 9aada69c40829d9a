"""TensorBoard, Weights & Biases and MLflow, if installed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from fedssl.config import flatten
from fedssl.errors import ConfigError
from fedssl.extras import installed
from fedssl.listener import Listener, RunInfo
from fedssl.storage import write_text


def scalars(line: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a round that make curves."""
    shown = ("loss", "divergence", "seconds")
    curves: dict[str, float] = {name: float(line[name]) for name in shown if name in line}
    curves |= {f"probe/{name}": float(value) for name, value in line.get("probe", {}).items()}
    curves["failed"] = float(len(line["failed"]))
    return curves


class TensorBoard(Listener):
    """Event files in RUN/tensorboard; does nothing if the package is not installed."""

    def __init__(self) -> None:
        self._writer: Any = None
        self._folder: Path | None = None

    def started(self, info: RunInfo) -> None:
        if info.config.log.tensorboard and installed("tensorboard"):
            self._folder = info.path / "tensorboard"

    def round(self, line: dict[str, Any]) -> None:
        if self._folder is None:
            return
        if self._writer is None:  # imported late, because it takes a second and training has started by now
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


class MLflow(Listener):
    """A run of the experiment `log.mlflow`: the config, a curve for every number, probes, and the encoder.

    A resumed run continues its MLflow run, whose id is in the run's folder.
    """

    def __init__(self) -> None:
        self._client: Any = None
        self._run = ""

    def started(self, info: RunInfo) -> None:
        experiment = info.config.log.mlflow
        if not experiment:
            return
        if not installed("mlflow"):
            raise ConfigError("log.mlflow needs the package mlflow-skinny: pip install 'fedssl[mlflow]'")
        self._client = importlib.import_module("mlflow").MlflowClient()
        known = info.path / "mlflow-run"
        if known.exists():
            self._run = known.read_text(encoding="utf-8")
            self._client.update_run(self._run, status="RUNNING")
            return
        self._run = self._begin(experiment, info)
        write_text(known, self._run)

    def _begin(self, experiment: str, info: RunInfo) -> str:
        found = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if found is None else found.experiment_id
        run: str = self._client.create_run(number, run_name=info.path.name).info.run_id
        for key, value in flatten(info.config.to_dict()):
            self._client.log_param(run, key, value)
        return run

    def round(self, line: dict[str, Any]) -> None:
        if self._client is not None:
            for name, value in scalars(line).items():
                self._client.log_metric(self._run, name, value, step=line["round"])

    def finished(self, result: dict[str, Any], path: Path) -> None:
        if self._client is None:
            return
        for probe in result["probes"]:
            for name in ("accuracy", "untrained", "macro_f1"):
                self._client.log_metric(self._run, f"{probe['protocol']}/{name}", probe[name])
        for file in ("config.toml", "result.json", "encoder.json", "encoder.safetensors"):
            self._client.log_artifact(self._run, str(path / file))
        self._client.set_terminated(self._run)
        self._client = None

    def close(self) -> None:
        if self._client is not None:  # it did not finish
            self._client.set_terminated(self._run, status="KILLED")
