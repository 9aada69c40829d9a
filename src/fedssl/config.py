"""One typed description of an experiment.

This module only composes: every section is defined in the package that reads it (`train` in
`fedssl.methods.options`), and a part chosen by name (a method, an objective, a partition) brings its own
keys: `method.tau` belongs to `fedssl.methods.fedema`. `fedssl run --help` lists them all.
"""

from __future__ import annotations

import math
import os
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from fedssl.errors import ConfigError, did_you_mean
from fedssl.options import Options, build, choose, explain
from fedssl.registry import Registry, load_object

if TYPE_CHECKING:
    from fedssl.aggregation.rule import Rule
    from fedssl.aggregation.server_optimizer import ServerOptimizer
    from fedssl.attacks.attack import Attack
    from fedssl.data.options import DataConfig
    from fedssl.data.partitions import Partition
    from fedssl.data.shifts import Shift
    from fedssl.data.view_recipes import ViewRecipe
    from fedssl.engines.engine import Engine
    from fedssl.engines.options import CheckpointConfig, ParticipationConfig, WireConfig
    from fedssl.evaluation.options import DetectionConfig, ProbeConfig, SemiConfig
    from fedssl.methods.method import Method
    from fedssl.methods.options import TrainConfig
    from fedssl.models.options import ModelConfig
    from fedssl.objectives.objective import Objective
    from fedssl.privacy.options import PrivacyConfig
    from fedssl.report.options import LogConfig


@dataclass(frozen=True)
class Section:
    """A section of the config, and where its class (or the registry of its classes) is defined.

    Sections are found by import path, so that this module depends on no other package.
    """

    home: str
    main: str = ""  # the key that a plain string sets: method="fedema"
    default: str = ""  # of that key, where the section is chosen from a registry
    about: str = ""  # a line for help and schema

    @property
    def chosen(self) -> bool:
        """Whether its class is chosen by name from a registry."""
        return bool(self.default)

    def registry(self) -> Registry:
        found: Registry = load_object("section", self.home)
        return found

    def options(self) -> type[Options]:
        """The class of a section that is not chosen by name."""
        found: type[Options] = load_object("section", self.home)
        return found

    def build(self, values: Mapping[str, Any], name: str) -> Any:
        """Validate the section's values."""
        if self.chosen:
            return choose(self.registry(), {self.main: self.default, **values}, name, self.main)
        return build(self.options(), dict(values), name)


SECTIONS = {
    "data": Section(
        "fedssl.data.options:DataConfig", "name", about="the images: data set or folder, size, channels"
    ),
    "partition": Section(
        "fedssl.data:PARTITIONS", "scheme", "classes", about="how images are assigned to clients"
    ),
    "shift": Section("fedssl.data:SHIFTS", "name", "none", about="how clients' images differ in appearance"),
    "views": Section("fedssl.data:VIEWS", "recipe", "auto", about="augmentations"),
    "model": Section("fedssl.models.options:ModelConfig", "encoder", about="the encoder and its heads"),
    "objective": Section(
        "fedssl.objectives:OBJECTIVES", "name", "simclr", about="what local training minimizes"
    ),
    "method": Section(
        "fedssl.methods:METHODS",
        "name",
        "fedavg",
        about="the federated method: what clients share, keep and receive",
    ),
    "aggregation": Section(
        "fedssl.aggregation:AGGREGATIONS", "name", "fedavg", about="how the server combines uploads"
    ),
    "server": Section(
        "fedssl.aggregation.server_optimizer:ServerOptimizer", about="an optimizer on top of the aggregation"
    ),
    "train": Section(
        "fedssl.methods.options:TrainConfig", about="local training: epochs, batch size, learning rate"
    ),
    "participation": Section(
        "fedssl.engines.options:ParticipationConfig", about="clients per round, limits for their uploads"
    ),
    "attack": Section("fedssl.attacks:ATTACKS", "name", "none", about="simulated attackers, for studies"),
    "wire": Section("fedssl.engines.options:WireConfig", about="messages between server and clients"),
    "engine": Section(
        "fedssl.engines:ENGINES", "name", "local", about="what runs the clients, workers and threads"
    ),
    "privacy": Section(
        "fedssl.privacy.options:PrivacyConfig", about="differential privacy and secure aggregation"
    ),
    "probe": Section("fedssl.evaluation.options:ProbeConfig", about="kNN and linear probes"),
    "semi": Section("fedssl.evaluation.options:SemiConfig", about="few labels (eval --protocol semi)"),
    "detection": Section(
        "fedssl.evaluation.options:DetectionConfig", about="detection (eval --protocol detection)"
    ),
    "checkpoint": Section("fedssl.engines.options:CheckpointConfig", about="when checkpoints are written"),
    "log": Section("fedssl.report.options:LogConfig", about="TensorBoard, Weights & Biases, MLflow"),
}

# The key that a plain string sets in `fedssl.run(method="fedema")`.
MAIN_KEY = {name: section.main for name, section in SECTIONS.items() if section.main}

MAX_BYTES = 1 << 20  # of a config file
MAX_DEPTH = 16  # levels of nested values
MAX_INT = 2**63 - 1
MAX_DOTS = 200  # in a line of a config file

# Keys that do not change the results of a run.
EXECUTION = ("engine", "log", "checkpoint")


def _section(name: str) -> Any:
    """The run-time type of a section: validated by the class that the section names."""

    def validate(values: Any) -> Any:
        return SECTIONS[name].build(values, name) if isinstance(values, Mapping) else values

    return Annotated[Any, BeforeValidator(validate)]


# To the type checker these are the classes themselves; at run time they are found by name.
if not TYPE_CHECKING:
    DataConfig, ViewRecipe, ModelConfig = _section("data"), _section("views"), _section("model")
    Partition, Shift = _section("partition"), _section("shift")
    Objective, Method, TrainConfig = _section("objective"), _section("method"), _section("train")
    Rule, ServerOptimizer = _section("aggregation"), _section("server")
    Engine, ParticipationConfig = _section("engine"), _section("participation")
    WireConfig, CheckpointConfig = _section("wire"), _section("checkpoint")
    PrivacyConfig, Attack = _section("privacy"), _section("attack")
    ProbeConfig, SemiConfig, DetectionConfig = _section("probe"), _section("semi"), _section("detection")
    LogConfig = _section("log")


class Config(Options):
    """All keys of an experiment. Build it with `load`."""

    seed: int = Field(0, ge=0, description="seed of all random numbers")
    rounds: int = Field(20, ge=1, description="number of communication rounds (R)")
    device: str = Field("auto", description="device to train on: auto, cpu, cuda, cuda:1, mps")
    data: DataConfig
    partition: Partition
    shift: Shift
    views: ViewRecipe
    model: ModelConfig
    objective: Objective
    method: Method
    aggregation: Rule
    server: ServerOptimizer
    train: TrainConfig
    participation: ParticipationConfig
    attack: Attack
    wire: WireConfig
    engine: Engine
    privacy: PrivacyConfig
    probe: ProbeConfig
    semi: SemiConfig
    detection: DetectionConfig
    checkpoint: CheckpointConfig
    log: LogConfig

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values, from which `load` builds the same config."""
        return _without_none(self.model_dump())


def load(
    source: str | Path | Mapping[str, Any] | None = None, overrides: Mapping[str, Any] | None = None
) -> Config:
    """Load and validate a config.

    Args:
        source: a TOML file, nested values, or None for the defaults.
        overrides: values by dotted key, such as {"train.lr": 0.1}.
    """
    values: dict[str, Any] = read_toml(source) if isinstance(source, str | Path) else _copy(source or {})
    for key, value in (overrides or {}).items():
        _set(values, key, value)
    return from_values(values)


def from_values(values: Mapping[str, Any]) -> Config:
    """Validate nested values."""
    _check_plain(values)
    for key in values:
        if key not in Config.model_fields:
            raise ConfigError(f"unknown key {key!r}: {did_you_mean(key, Config.model_fields)}")
    merged = {key: _main(key, value) for key, value in values.items()}
    for name, section in SECTIONS.items():
        given = merged.get(name, {})
        if isinstance(given, Mapping):
            merged[name] = section.build(given, name)
        elif not isinstance(given, Options):
            raise ConfigError(f"{name}={given!r}: {name} is a section; set its keys, {name}.KEY=VALUE")
    try:
        return Config(**merged)
    except ValidationError as error:
        raise ConfigError(explain(error, Config, "")) from None


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read the nested values of a TOML file."""
    try:
        state = os.stat(path)
        if not stat.S_ISREG(state.st_mode):
            raise ConfigError(f"{path} is not a file")
        if state.st_size > MAX_BYTES:
            raise ConfigError(f"{path} has {state.st_size:,} bytes: too large for a config")
        text = Path(path).read_bytes().decode("utf-8-sig")
        if any(line.count(".") > MAX_DOTS for line in text.splitlines()):
            raise RecursionError  # tomllib's time is quadratic in the number of a key's parts
        return tomllib.loads(text)
    except FileNotFoundError:
        hint = "" if str(path).endswith(".toml") else "; to set a key, write KEY=VALUE"
        raise ConfigError(f"no config file {path}{hint}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise ConfigError(f"{path}: values are nested too deeply") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def _check_plain(values: Any) -> None:
    """Raise a ConfigError for values that are nested too deeply or too long."""
    waiting: list[tuple[Any, int]] = [(values, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise ConfigError("values are nested too deeply")
        if isinstance(value, str) and ("\0" in value or len(value) > MAX_BYTES):
            raise ConfigError(f"{value[:40]!r}… cannot be a value: it has a NUL character, or is too long")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{value} cannot be a value: it is not finite")
        if isinstance(value, int) and abs(value) > MAX_INT:
            raise ConfigError(f"{str(value)[:20]}… cannot be a value: it is too large")
        if isinstance(value, Mapping):
            waiting += [(part, depth + 1) for pair in value.items() for part in pair]
        elif isinstance(value, list | tuple):
            waiting += [(part, depth + 1) for part in value]


def parse_overrides(words: Iterable[str]) -> dict[str, Any]:
    """`["train.lr=0.1", "method.name=fedema"]` → `{"train.lr": 0.1, "method.name": "fedema"}`."""
    parsed: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ConfigError(f"{word!r} is not key=value")
        parsed[key.strip()] = _value(text.strip())
    return parsed


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except RecursionError:
        raise ConfigError(f"{text[:40]}…: values are nested too deeply") from None
    except ValueError:
        return text


def _main(section: str, value: Any) -> Any:
    return {MAIN_KEY[section]: value} if section in MAIN_KEY and isinstance(value, str) else value


def _set(values: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, last = dotted.split(".")
    for section in sections:
        values[section] = _main(section, values.get(section, {}))
        values = values[section]
        if not isinstance(values, dict):
            raise ConfigError(f"unknown key {dotted!r}: {section} is a value, not a section")
    values[last] = value if not isinstance(value, Mapping) else _copy(value)


def _copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def flatten(values: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    """{"data": {"limit": 0}} → ("data.limit", 0)."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{section}{key}.")
        else:
            yield f"{section}{key}", value


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }
