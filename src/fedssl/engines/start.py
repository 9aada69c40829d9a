"""`model.init`: the initial weights of an encoder; the run stores a copy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedssl.config import Config
from fedssl.errors import ConfigError
from fedssl.models.encoders import Encoder
from fedssl.models.fit import fitted
from fedssl.models.weights import Weights, find_weights
from fedssl.normalization import shortest
from fedssl.state import State
from fedssl.tensorfile import load_tensors, save_tensors

FILE = "start.safetensors"  # in the folder of checkpoints


@dataclass(frozen=True)
class Start:
    """An encoder's tensors before round 1, and notes about changes that were made to fit them."""

    state: State
    notes: tuple[str, ...]


def with_start_defaults(config: Config) -> Config:
    """The config with the keys that the weights of `model.init` imply, unless they are set.

    Runs, timm and the hub specify the encoder and the normalization of its input.
    """
    if not config.model.init:
        return config
    weights = find_weights(config.model)
    model = {key: value for key, value in weights.model.items() if key not in config.model.model_fields_set}
    if "stem" not in {*model, *config.model.model_fields_set}:
        model["stem"] = "fine" if "patch" in config.model.model_fields_set else "original"
    if Path(config.model.init).expanduser().exists():
        model["init"] = str(Path(config.model.init).expanduser().resolve())
    data = {
        key: shortest(values)
        for key, values in (("mean", weights.mean), ("std", weights.std))
        if values and key not in config.data.model_fields_set
    }
    return config.model_copy(
        update={
            "model": config.model.model_copy(update=model),
            "data": config.data.model_copy(update=data),
        }
    )


def load_start(config: Config, encoder: Encoder, kept: Path | None) -> Start | None:
    """Load the initial tensors; None if these are random.

    Args:
        config: the run's config.
        encoder: the encoder to start.
        kept: the run's copy, which is read if it exists, else written.

    Raises:
        ConfigError: the weights are missing, or do not fit the encoder.
    """
    if not config.model.init:
        return None
    if config.objective.own_encoder:
        raise ConfigError(
            f"model.init: objective {config.objective.name} trains its own {config.objective.own_encoder}"
        )
    if kept is not None and kept.is_file():
        state, values = load_tensors(kept)
        return Start(state, tuple(values["notes"]))
    weights = find_weights(config.model)
    try:
        state, changed = fitted(weights.tensors(), encoder.module)
    except ConfigError as error:
        raise ConfigError(_misfit(config, weights, str(error))) from None
    notes = [f"model.init={config.model.init}: {note}" for note in [*changed, *_input_notes(config, weights)]]
    if kept is not None:
        save_tensors(kept, state, {"init": config.model.init, "notes": notes})
    return Start(state, tuple(notes))


def _misfit(config: Config, weights: Weights, problem: str) -> str:
    text = f"model.init={config.model.init} does not fit model.encoder={config.model.encoder}: {problem}"
    other = [
        f"model.{key}={value}" for key, value in weights.model.items() if getattr(config.model, key) != value
    ]
    return text + (f"; these weights are of {' '.join(other)}" if other else "")


def _input_notes(config: Config, weights: Weights) -> list[str]:
    """Notes about inputs that differ from those the encoder was trained on."""
    if not weights.mean:
        return ["the file does not specify the normalization of its input; data.mean and data.std are used"]
    asked: list[tuple[str, tuple[float, ...], Any]] = [
        ("data.mean", weights.mean, config.data.mean),
        ("data.std", weights.std, config.data.std),
    ]
    return [
        f"it was trained with {key}={list(expected)}, but gets {used}"
        for key, expected, used in asked
        if shortest(expected) != used
    ]
