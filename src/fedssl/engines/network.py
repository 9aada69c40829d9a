"""The model of a run, built from its config and seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from fedssl.config import Config
from fedssl.engines.start import load_start
from fedssl.errors import ConfigError
from fedssl.limits import physical_memory
from fedssl.models.adapters import add_adapters
from fedssl.models.encoders import Encoder
from fedssl.models.model import Model
from fedssl.models.stages import freeze, frozen_names
from fedssl.rng import derive
from fedssl.state import State, snapshot

LARGE = 512  # larger widths are checked before the model is built
COPIES = 4  # of the model while it trains: weights, gradients, momentum, what was received


@dataclass(frozen=True)
class Network:
    """A run's model and its initial tensors.

    Attributes:
        model: the model.
        encoder: its encoder, with the width of its features.
        initial: all tensors of the model before round 1.
        another: returns the tensors of another random initialization, by its number, from 1.
        notes: changes that were made to fit the weights of `model.init`.
    """

    model: Model
    encoder: Encoder
    initial: State
    another: Callable[[int], State]
    notes: tuple[str, ...] = ()


def build_network(
    config: Config,
    size: tuple[int, int],
    channels: int,
    classes: int,
    start: Path | None = None,
    number: int = 0,
) -> Network:
    """Build the model of a run: the same bits in every process, whatever was drawn before.

    Args:
        config: the run's config.
        size: height and width of the images.
        channels: of the images.
        classes: number of classes, for objectives that train a classifier.
        start: the folder in which the run stores the weights of `model.init`.
        number: of the random initialization; 0: the one that clients start from.
    """
    _check_memory(config, size, channels, classes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(config.seed, "init", *([number] if number else [])))
        encoder = config.objective.encoder(config, size, channels)
        begin = load_start(config, encoder, start)
        if begin is not None:
            encoder.module.load_state_dict(begin.state)
        train = config.train
        if config.objective.own_encoder and (train.freeze or train.lora or train.layer_decay < 1):
            raise ConfigError(
                "train.freeze, train.lora and train.layer_decay apply to the encoder of model.encoder, but "
                f"objective {config.objective.name} trains its own {config.objective.own_encoder}"
            )
        if train.freeze:
            freeze(encoder.module, train.freeze)
        if train.lora:
            add_adapters(encoder.module, train.lora, train.lora_scale, train.lora_mean == "product")
        model = config.objective.build(encoder.module, encoder.features, config.model, classes)
        model.extend(
            config.method.parts(model, lambda: config.objective.encoder(config, size, channels), config.model)
        )
        if train.freeze or train.lora:
            model.frozen = frozen_names(model)

    def another(number: int) -> State:
        return build_network(config, size, channels, classes, start, number).initial

    return Network(model, encoder, snapshot(model), another, begin.notes if begin else ())


def _check_memory(config: Config, size: tuple[int, int], channels: int, classes: int) -> None:
    """Raise a ConfigError if a model with unusually large layers cannot fit into memory."""
    parts = (config.model, config.objective, config.method)
    if not any(isinstance(value, int) and value > LARGE for part in parts for _, value in part):
        return
    with torch.device("meta"):
        encoder = config.objective.encoder(config, size, channels)
        model = config.objective.build(encoder.module, encoder.features, config.model, classes)
    needed = COPIES * sum(value.numel() * value.element_size() for value in model.state_dict().values())
    available = physical_memory()
    if needed > available:
        raise ConfigError(
            f"to train {needed / COPIES / 2**30:,.1f} GB of weights takes {needed / 2**30:,.0f} GB, but "
            f"there are {available / 2**30:,.0f} GB: lower the widths of model.* and objective.*"
        )
