"""`model.init`: weights to start from. They are never downloaded; errors name the command that does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedssl.errors import ConfigError, RunError, did_you_mean
from fedssl.models.options import ModelConfig
from fedssl.state import State
from fedssl.storage import read_json
from fedssl.tensorfile import load_tensors

# Keys of the section `model` that define the encoder; the others define heads.
ARCHITECTURE = ("encoder", "width", "stem_stride", "patch", "stem")
HF_FILES = ("model.safetensors", "encoder.safetensors")


@dataclass(frozen=True)
class Weights:
    """Tensors of an encoder, with its metadata.

    Attributes:
        file: the file of tensors.
        model: keys of the section `model` that build such an encoder; empty if unknown.
        mean: mean of each channel in the encoder's normalization; empty if unknown.
        std: standard deviation of each channel; empty if unknown.
    """

    file: Path
    model: Mapping[str, Any] = field(default_factory=dict)
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def tensors(self) -> State:
        try:
            return load_tensors(self.file)[0]
        except RunError as error:
            raise ConfigError(f"model.init: {error}") from None


def find_weights(config: ModelConfig) -> Weights:
    """Find the weights of `model.init`.

    Raises:
        ConfigError: they are not on this machine; the message says how to get them.
    """
    init = config.init
    if init == "timm":
        return _of_timm(config.encoder)
    if init.startswith("hf:"):
        return _of_hub(init.removeprefix("hf:"))
    path = Path(init).expanduser()
    if path.is_dir():
        return _of_run(path)
    if not path.is_file():
        near = sorted(str(file) for file in path.parent.glob("*")) if path.parent.is_dir() else []
        hint = did_you_mean(init, [*near, "timm", "hf:REPO"])
        raise ConfigError(f"model.init={init}: no run folder or file of that name; {hint}")
    if path.suffix != ".safetensors":
        raise ConfigError(
            f"model.init={init}: not a .safetensors file. Pickled weights can run code; convert a file you "
            "trust with torch.load(…, weights_only=True) and safetensors.torch.save_file"
        )
    return _described(path, path.with_suffix(".json"))


def _of_run(folder: Path) -> Weights:
    from fedssl.config import read_toml
    from fedssl.rundir import RunDir

    config, file = folder / "config.toml", folder / "encoder.safetensors"
    if not file.is_file():
        what = "no run: no config.toml"
        if config.is_file():
            what = f"no encoder yet: continue it with {RunDir(folder).how_to_continue()}"
        raise ConfigError(f"model.init={folder}: {what}")
    found = _described(file, folder / "encoder.json")
    if not config.is_file():
        return found
    model = read_toml(config).get("model", {})
    known = {**{key: model[key] for key in ARCHITECTURE if key in model}, **found.model}
    return Weights(file, known, found.mean, found.std)


def _described(file: Path, page: Path) -> Weights:
    """A file of weights with the description that fedssl writes next to it, if there is one."""
    if not page.is_file():
        return Weights(file)
    about = read_json(page)
    given = about.get("input", {})
    stem = {"stem": "fine" if about.get("changes") else "original"} if _is_timm(about) else {}
    return Weights(file, stem, tuple(given.get("mean", ())), tuple(given.get("std", ())))


def _is_timm(description: Mapping[str, Any]) -> bool:
    """Whether an encoder is timm:NAME, whose stem depends on the size of images."""
    return bool(description.get("factory") == "timm.create_model")


def _of_timm(encoder: str) -> Weights:
    """timm's weights, from the caches of huggingface_hub and torch.hub."""
    if not encoder.startswith("timm:"):
        raise ConfigError(f"model.init=timm: timm has no weights of {encoder}; set model.encoder=timm:NAME")
    import timm
    import torch
    from huggingface_hub import try_to_load_from_cache

    name = encoder.removeprefix("timm:")
    found = timm.get_pretrained_cfg(name) if timm.is_model(name.split(".")[0]) else None
    if found is None or not (found.hf_hub_id or found.url):
        raise ConfigError(
            f"model.init=timm: timm has no weights of {name}; timm.list_pretrained() names those"
        )
    about = {"mean": tuple(found.mean), "std": tuple(found.std)}
    if found.hf_hub_id:
        repository, file = str(found.hf_hub_id), str(found.hf_hub_filename or HF_FILES[0])
        cached = try_to_load_from_cache(repository, file)
        if isinstance(cached, str):
            return Weights(Path(cached), {"encoder": encoder}, **about)
    if found.url:
        checkpoints = Path(torch.hub.get_dir()) / "checkpoints"
        safe = (checkpoints / Path(str(found.url)).name).with_suffix(".safetensors")
        if safe.is_file():
            return Weights(safe, {"encoder": encoder}, **about)
    command = f"hf download {found.hf_hub_id} {HF_FILES[0]}" if found.hf_hub_id else f"curl -LO {found.url}"
    raise ConfigError(f"model.init=timm: the weights of {name} are not on this machine: `{command}`")


def _of_hub(repository: str) -> Weights:
    """A repository in the cache of huggingface_hub: weights of timm, or an encoder that fedssl wrote."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = {name: try_to_load_from_cache(repository, name) for name in (*HF_FILES, "config.json")}
    except HFValidationError as error:
        raise ConfigError(f"model.init=hf:{repository}: {error}") from None
    files = {name: Path(path) for name, path in found.items() if isinstance(path, str)}
    weights = next((files[name] for name in HF_FILES if name in files), None)
    if weights is None:
        raise ConfigError(
            f"model.init=hf:{repository} is not on this machine: "
            f"`hf download {repository} --include '*.safetensors' '*.json'`"
        )
    if weights.name != HF_FILES[0] or "config.json" not in files:
        return _described(weights, weights.with_suffix(".json"))
    about = json.loads(files["config.json"].read_text(encoding="utf-8"))
    given = about.get("pretrained_cfg", about)
    model = {"encoder": f"timm:{about['architecture']}"} if "architecture" in about else {}
    return Weights(weights, model, tuple(given.get("mean", ())), tuple(given.get("std", ())))
