"""The model of a run, built from its config and seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from fedssl.config import Config
from fedssl.engines.start import load_start
from fedssl.errors import ConfigError
from fedssl.models.adapters import add_adapters
from fedssl.models.encoders import Encoder
from fedssl.models.model import Model
from fedssl.models.stages import freeze, frozen_names
from fedssl.rng import derive
from fedssl.state import State, snapshot


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
