"""One typed description of an experiment.

Keys that every run has are here. A part that is chosen by name (a method, an objective, a
partition, …) brings keys of its own, documented in its file: `method.tau` belongs to
`fedssl.methods.fedema`. `fedssl run --help` lists them all.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from fedssl.aggregation import AGGREGATIONS
from fedssl.data import PARTITIONS, SHIFTS, VIEWS
from fedssl.engines import ENGINES
from fedssl.errors import ConfigError, did_you_mean
from fedssl.methods import METHODS
from fedssl.objectives import OBJECTIVES
from fedssl.options import Options, build, choose, explain
from fedssl.registry import Registry

if TYPE_CHECKING:
    from fedssl.aggregation.rule import Rule
    from fedssl.aggregation.server_optimizer import ServerOptimizer as Server
    from fedssl.data.partitions import Partition
    from fedssl.data.shifts import Shift
    from fedssl.data.view_recipes import ViewRecipe
    from fedssl.engines.engine import Engine
    from fedssl.methods.method import Method
    from fedssl.objectives.objective import Objective


class DataConfig(Options):
    name: str = Field("digits", description="data set (see `fedssl list datasets`)")
    root: str = Field("", description="file or folder: for npz and folder, and where downloads go")
    limit: int = Field(0, ge=0, description="seeded stratified subset of so many images; 0: all")
    size: int = Field(
        0,
        ge=0,
        description="side in pixels that images are resized to; 0: as they are (folders of mixed or large "
        "sizes: the median side, at most 224; celeba: 64)",
    )
    channels: Literal[0, 1, 3] = Field(0, description="1 grey, 3 colour; 0: as they are")
    split: str = Field("", description="Hugging Face: TRAIN/TEST; stl10: train, unlabeled, train+unlabeled")
    test_fraction: float = Field(0.2, gt=0, lt=1, description="test share of a set that brings no test split")
    holdout: float = Field(
        0.0, ge=0, lt=1, description="labelled share kept out of pre-training (for eval --protocol semi)"
    )
    memory_mb: int = Field(4096, ge=1, description="larger sets are read from a memory-mapped cache")
    mean: float = Field(0.5, description="subtracted from pixels in [0,1]")
    std: float = Field(0.25, gt=0, description="pixels are divided by it")


class ModelConfig(Options):
    encoder: str = Field(
        "resnet8",
        description="resnet8, resnet18, resnet50, vit_tiny, or timm:NAME (not for generative objectives)",
    )
    width: int = Field(16, ge=1, description="channels of the first stage (resnet8/18/50)")
    stem_stride: Literal[1, 2] = Field(1, description="stride of the 3×3 stem (resnet8/18/50)")
    patch: int = Field(4, ge=1, description="patch side of a vision transformer")
    projector_hidden: int = Field(256, ge=1, description="hidden width of the projector (papers: 4096)")
    projector_out: int = Field(128, ge=1, description="output width of the projector (papers: 2048)")
    predictor_hidden: int = Field(256, ge=1, description="hidden width of the predictor (papers: 4096)")


class TrainConfig(Options):
    epochs: float = Field(2.0, gt=0, description="local epochs per round (E); a fraction is allowed")
    batch_size: int = Field(32, ge=2, description="images per step (B)")
    lr: float = Field(0.05, gt=0, description="learning rate of the first round")
    optimizer: Literal["sgd", "adam", "adamw"] = Field("sgd", description="fresh in every round")
    momentum: float = Field(0.9, ge=0, lt=1, description="of SGD")
    weight_decay: float = Field(5e-4, ge=0, description="L2 penalty on all trained parameters")
    schedule: Literal["cosine", "constant", "step"] = Field(
        "cosine", description="learning rate over rounds; step: ×0.1 at 60 % and 80 %"
    )
    clip: float = Field(0.0, ge=0, description="largest gradient norm; 0: no limit")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto",
        description="auto: bf16 on CUDA, else fp32; bf16 pays on CPUs that multiply it (AVX-512 BF16, AMX)",
    )
    compile: bool = Field(
        False,
        description="encoders through torch.compile: faster steps after up to a minute, other rounding",
    )


class ParticipationConfig(Options):
    per_round: int | float = Field(1.0, gt=0, description="clients per round: a count (5), or a share (0.25)")
    max_clients: int = Field(0, ge=0, description="never more clients per round than this; 0: no limit")
    min_clients: int = Field(1, ge=1, description="fewer uploads than this stop the run (it can be resumed)")
    overshoot: float = Field(
        0.0,
        ge=0,
        description="clients asked beyond per_round, as a share of it; the first to be done count",
    )
    failure_rate: float = Field(
        0.0, ge=0, lt=1, description="simulated: chance that a client fails in a round"
    )
    timeout: float = Field(0.0, ge=0, description="seconds after which a client is too late; 0: never")
    max_change: float = Field(
        0.0,
        ge=0,
        description="an upload is refused if its distance from the global model is more than so many times "
        "the norm of that; 0: no limit (`fedssl server`: 10)",
    )
    max_images: int = Field(
        0, ge=0, description="an upload is refused if its client claims to have more images; 0: no limit"
    )


class WireConfig(Options):
    """What travels between server and clients."""

    dtype: Literal["float32", "float16"] = Field(
        "float32", description="floating point numbers are rounded to this before they are sent"
    )
    max_mb: int = Field(2048, ge=1, description="longer messages are refused unread")


class ProbeConfig(Options):
    every: int = Field(5, ge=0, description="rounds between kNN monitors; 0: only at the end")
    protocol: Literal["linear", "knn", "none"] = Field("linear", description="the final probe")
    limit: int = Field(0, ge=0, description="training images the probes use; 0: all")
    labels: float = Field(1.0, gt=0, le=1, description="share of the training labels that the probe may use")
    clients: int = Field(10, ge=1, description="personal encoders: at most so many clients are probed")
    local_epochs: float = Field(
        0.0,
        ge=0,
        description="personal: epochs that a client trains what it received before it is probed; 0: none",
    )
    neighbours: int = Field(20, ge=1, description="k of the kNN monitor")
    temperature: float = Field(0.1, gt=0, description="of the kNN weights exp(cos/T)")
    form: Literal["fast", "epochs"] = Field(
        "fast", description="linear: converged logistic regression, or the papers' epochs and optimizer"
    )
    l2: float = Field(1e-3, gt=0, description="linear, fast: penalty on the weights of standardised features")
    epochs: int = Field(200, ge=1, description="linear, epochs")
    batch_size: int = Field(512, ge=2, description="linear, epochs")
    lr: float = Field(3e-3, gt=0, description="linear, epochs")
    optimizer: Literal["adam", "sgd"] = Field("adam", description="linear, epochs")
    milestones: tuple[int, ...] = Field((), description="linear, epochs: after these the rate is ×0.1")


class SemiConfig(Options):
    """`fedssl eval --protocol semi`: fine-tuning of the whole model on few labels (FedEMA, appendix B.3)."""

    labels: float = Field(
        0.0, ge=0, lt=1, description="labelled share of the training images; 0: data.holdout"
    )
    hidden: int = Field(512, ge=1, description="width of the fresh two-layer head")
    epochs: int = Field(100, ge=1, description="of fine-tuning")
    batch_size: int = Field(128, ge=2, description="of fine-tuning")
    lr: float = Field(1e-3, gt=0, description="of Adam")


class DetectionConfig(Options):
    """`fedssl eval --protocol detection`: the encoder under Mask R-CNN with FPN (Dec-SSL, section 3.1)."""

    data: Literal["shapes", "npz", "coco", "pennfudan"] = Field(
        "shapes", description="images with boxes and masks; shapes are drawn, npz has boxes only"
    )
    root: str = Field(
        "", description="npz: NAME_train.npz (a bare name: beside data.root); coco, pennfudan: the folder"
    )
    images: str = Field("train2017", description="coco: the folder of training images in root")
    annotations: str = Field(
        "annotations/instances_train2017.json", description="coco: the annotations of training images"
    )
    test_images: str = Field("val2017", description="coco: the folder of test images in root")
    test_annotations: str = Field(
        "annotations/instances_val2017.json", description="coco: their annotations; empty: split some off"
    )
    test_fraction: float = Field(0.2, gt=0, lt=1, description="test share of a set that brings no test split")
    limit: int = Field(0, ge=0, description="training images; 0: all (shapes: 300)")
    test_limit: int = Field(0, ge=0, description="test images; 0: all (shapes: 100)")
    labels: float = Field(1.0, gt=0, le=1, description="share of the training images that is labelled")
    size: int = Field(
        0, ge=0, description="shorter side in pixels; 0: as images are, at most 800 (shapes: drawn at 96)"
    )
    max_size: int = Field(1333, ge=1, description="longer side at most")
    width: int = Field(256, ge=4, description="channels of FPN and heads; fully connected layers: 4 times")
    regions: int = Field(512, ge=1, description="regions of an image that the heads train on in a step")
    steps: int = Field(500, ge=1, description="of fine-tuning; the rate is ×0.1 at 2/3 and at 8/9 of them")
    batch_size: int = Field(4, ge=1, description="images per step")
    lr: float = Field(0.02, gt=0, description="learning rate; warm-up: a tenth of the steps, at most 1,000")
    optimizer: Literal["sgd", "adamw"] = Field("sgd", description="sgd: with momentum 0.9")
    weight_decay: float = Field(1e-4, ge=0, description="L2 penalty on all trained parameters")
    clip: float = Field(10.0, ge=0, description="largest gradient norm; 0: no limit")
    flip: float = Field(0.5, ge=0, le=1, description="chance of a horizontal flip")


class LogConfig(Options):
    tensorboard: bool = Field(True, description="write TensorBoard events where it is installed")
    wandb: str = Field("", description="Weights & Biases project to log to (extra `wandb`)")


class CheckpointConfig(Options):
    every: int = Field(5, ge=1, description="rounds between checkpoints (and always at the end)")
    keep: int = Field(1, ge=0, description="checkpoints to keep; 0: all (trajectories need them)")


def _chosen(registry: Registry, section: str, key: str = "name") -> Any:
    def validate(values: Any) -> Any:
        return choose(registry, dict(values), section, key) if isinstance(values, Mapping) else values

    return Annotated[Any, BeforeValidator(validate)]


def _built(path: str, section: str) -> Any:
    def validate(values: Any) -> Any:
        kind = Registry(section, {}).get(path)
        return build(kind, dict(values), section) if isinstance(values, Mapping) else values

    return Annotated[Any, BeforeValidator(validate)]


# To the type checker these are the parts themselves; at run time they are found by name.
if not TYPE_CHECKING:
    Partition = _chosen(PARTITIONS, "partition", "scheme")
    Shift = _chosen(SHIFTS, "shift")
    ViewRecipe = _chosen(VIEWS, "views", "recipe")
    Objective = _chosen(OBJECTIVES, "objective")
    Method = _chosen(METHODS, "method")
    Rule = _chosen(AGGREGATIONS, "aggregation")
    Engine = _chosen(ENGINES, "engine")
    Server = _built("fedssl.aggregation.server_optimizer:ServerOptimizer", "server")

DEFAULTS: dict[str, dict[str, Any]] = {
    "partition": {"scheme": "classes"},
    "shift": {"name": "none"},
    "views": {"recipe": "auto"},
    "objective": {"name": "simclr"},
    "method": {"name": "fedavg"},
    "aggregation": {"name": "fedavg"},
    "engine": {"name": "local"},
    "server": {},
}


class Config(Options):
    """All keys of an experiment. Build it with `load`."""

    seed: int = Field(0, ge=0, description="all random numbers derive from it")
    rounds: int = Field(20, ge=1, description="communication rounds (R)")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")
    data: DataConfig = DataConfig()
    partition: Partition
    shift: Shift
    views: ViewRecipe
    model: ModelConfig = ModelConfig()
    objective: Objective
    method: Method
    aggregation: Rule
    server: Server
    train: TrainConfig = TrainConfig()
    participation: ParticipationConfig = ParticipationConfig()
    wire: WireConfig = WireConfig()
    engine: Engine
    probe: ProbeConfig = ProbeConfig()
    semi: SemiConfig = SemiConfig()
    detection: DetectionConfig = DetectionConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()

    def resolved(self) -> dict[str, Any]:
        """Plain values, enough to build this config again."""
        return _without_none(self.model_dump())


# What a bare word stands for in `fedssl.run(method="fedema")`.
MAIN_KEY = {
    "data": "name",
    "partition": "scheme",
    "shift": "name",
    "views": "recipe",
    "model": "encoder",
    "objective": "name",
    "method": "name",
    "aggregation": "name",
    "engine": "name",
}


def load(
    source: str | Path | Mapping[str, Any] | None = None, overrides: Mapping[str, Any] | None = None
) -> Config:
    """A validated config from a TOML file or mapping, then `overrides` ("train.lr": 0.1)."""
    values: dict[str, Any] = read_toml(source) if isinstance(source, str | Path) else _copy(source or {})
    for key, value in (overrides or {}).items():
        _set(values, key, value)
    return from_values(values)


def from_values(values: Mapping[str, Any]) -> Config:
    """A validated config from nested values."""
    merged = {key: (_main(key, value)) for key, value in values.items()}
    for section, default in DEFAULTS.items():
        given = merged.get(section, {})
        merged[section] = {**default, **given} if isinstance(given, Mapping) else given
    for section, value in merged.items():
        field = Config.model_fields.get(section)
        if field is None:
            raise ConfigError(f"unknown key {section!r}: {did_you_mean(section, Config.model_fields)}")
        kind = field.annotation
        if isinstance(value, Mapping) and isinstance(kind, type) and issubclass(kind, Options):
            merged[section] = build(kind, dict(value), section)
    try:
        return Config(**merged)
    except ValidationError as error:
        raise ConfigError(explain(error, Config, "")) from None


def read_toml(path: str | Path) -> dict[str, Any]:
    """The nested values of a TOML file."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        hint = "" if str(path).endswith(".toml") else "; to set a key, write KEY=VALUE"
        raise ConfigError(f"no config file {path}{hint}") from None
    except (tomllib.TOMLDecodeError, IsADirectoryError) as error:
        raise ConfigError(f"{path}: {error}") from None


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
    except tomllib.TOMLDecodeError:
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


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }
