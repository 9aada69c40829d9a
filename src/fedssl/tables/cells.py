"""The cells of a table: every row in every column with every seed, each with its config and folder."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedssl.config import EXECUTION, MAIN_KEY, SECTIONS, Config, flatten
from fedssl.config import load as load_config
from fedssl.errors import ConfigError
from fedssl.tables.table import Column, Measure, Row, Table

# Limits that refuse invalid uploads. They do not affect a run without invalid uploads, and the metrics of a
# run record every refusal. (Simulated attackers make use of them.)
GUARDS = {"participation": ("max_change",)}

TUNING_SEEDS = 1000  # seeds from here on are for choosing settings; results use smaller seeds


@dataclass(frozen=True)
class Cell:
    """One number of the table: a run, and what to measure of it."""

    row: str
    column: str
    seed: int
    config: Config
    measure: Measure
    folder: str  # the run's folder, named after its config

    @property
    def name(self) -> str:
        return f"{self.row} · {self.column} · seed {self.seed}"


def cells(
    table: Table, seeds: int, overrides: Mapping[str, Any], first_seed: int = 0, need_images: bool = True
) -> list[Cell]:
    """Return all cells by seed, so that a table that is stopped early has complete rows of fewer seeds.

    Args:
        table: the table.
        seeds: number of seeds.
        overrides: config keys for all cells.
        first_seed: the first seed.
        need_images: whether the table's image files must exist.
    """
    _check_seeds(seeds, first_seed, overrides)
    first = [
        _cell(table, row, column, first_seed, overrides, need_images)
        for row in table.rows
        for column in table.columns
    ]
    return [_with_seed(cell, seed) for seed in range(first_seed, first_seed + seeds) for cell in first]


def _with_seed(cell: Cell, seed: int) -> Cell:
    """Change the seed only, because validating a config again takes much longer."""
    config = cell.config.model_copy(update={"seed": seed})
    return replace(cell, seed=seed, config=config, folder=folder(config))


def _check_seeds(seeds: int, first_seed: int, overrides: Mapping[str, Any]) -> None:
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: at least 1 is needed")
    if first_seed < 0:
        raise ConfigError(f"--first-seed {first_seed}: seeds begin at 0")
    if "seed" in overrides:
        raise ConfigError(f"seed={overrides['seed']}: choose seeds with --first-seed and --seeds")
    if first_seed < TUNING_SEEDS < first_seed + seeds:
        raise ConfigError(
            f"seeds {first_seed} to {first_seed + seeds - 1}: seeds from {TUNING_SEEDS} on are for tuning "
            "and cannot be mixed with others"
        )


def _cell(
    table: Table, row: Row, column: Column, seed: int, overrides: Mapping[str, Any], need_images: bool
) -> Cell:
    where = f"{table.origin}: row {row.name!r}, column {column.name!r}"
    try:
        values = {**values_of(table, row, column), "seed": seed}
        config = load_config(values)
        measure = table.measure_of(row, column)
        _check_measure(measure)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if overrides:
        config = load_config(values, overrides)
    if need_images:
        config = _with_file(config, values.get("data", {}).get("root", ""), table.label)
    return Cell(row.name, column.name, seed, config, measure, folder(config))


def _check_measure(measure: Measure) -> None:
    """Check the options of `generate` before training instead of after hours of it."""
    if measure.kind == "generate":
        from fedssl.generative.use import choose_use

        choose_use(measure.what, dict(flatten(measure.config)))


def values_of(table: Table, row: Row, column: Column) -> dict[str, Any]:
    """Return a cell's settings: base, column and row, each overriding the previous."""
    return overlay(overlay(overlay({}, table.base), column.config), row.config)


def overlay(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `over` into a config. A change of implementation drops the keys of the previous one."""
    merged = dict(under)
    for section, given in over.items():
        main = MAIN_KEY.get(section)
        value = {main: given} if main and isinstance(given, str) else given
        below = merged.get(section, {})
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            if section in SECTIONS and SECTIONS[section].chosen and main in value:
                fields = SECTIONS[section].registry().get(str(value[main])).model_fields
                below = {key: old for key, old in below.items() if key in fields}
            value = {**below, **value}
        merged[section] = value
    return merged


def _with_file(config: Config, file: str, what: str) -> Config:
    """Look up a file or folder that the table names in the folder data.root."""
    data = config.data
    path = Path(data.root).expanduser()
    inside = path / Path(file).name
    if (data.name == "npz" and path.is_dir()) or (data.name == "folder" and inside.is_dir()):
        path = inside
    if data.name != "npz" and not (data.root and path.is_dir()):
        return config
    if not path.exists():
        raise ConfigError(
            f"{what} needs {path.name}, which is not at {path}: set data.root=FOLDER to its folder"
        )
    return config.model_copy(update={"data": data.model_copy(update={"root": str(path.resolve())})})


def locate(runs: Path, cell: Cell) -> Path:
    """Return where the run of a cell is or will be stored.

    A run of an older version is found again if its config, completed with the defaults of newer keys, is
    the same.
    """
    path = runs / cell.folder
    if not (path / "config.toml").exists():
        for other in sorted(runs.glob(f"{cell.folder[:-8]}{'?' * 8}/config.toml")):
            try:
                if folder(load_config(other)) == cell.folder:
                    return other.parent
            except ConfigError:  # a key that no longer exists: not the same config
                continue
    return path


def folder(config: Config) -> str:
    """Return `cifar10-byol-fedema-s0-1a2b3c4d`: the same config gives the same run in every table."""
    words = (*about(config), f"s{config.seed}", digest(_computed(config)))
    return re.sub(r"[^\w.-]+", "_", "-".join(words))


def about(config: Config) -> tuple[str, str, str]:
    """Return data, objective and method."""
    data = (
        Path(config.data.root).stem.removesuffix("_train") if config.data.name == "npz" else config.data.name
    )
    return data, config.objective.name, config.method.name


def portable(config: Config) -> dict[str, Any]:
    """Return what the config computes, without its seed and machine-specific keys (device, folders)."""
    values = {key: value for key, value in _computed(config).items() if key not in ("seed", "device")}
    root = Path(config.data.root).name if config.data.name in ("npz", "folder") else ""
    found: dict[str, Any] = json.loads(json.dumps({**values, "data": {**values["data"], "root": root}}))
    return found


def _computed(config: Config) -> dict[str, Any]:
    """Return the keys that affect the numbers."""
    what = {key: value for key, value in config.to_dict().items() if key not in EXECUTION}
    for section, guards in GUARDS.items() if config.attack.name == "none" else ():
        what[section] = {key: value for key, value in what[section].items() if key not in guards}
    return what | ({"engine": config.engine.identity()} if config.engine.identity() else {})


def digest(values: Mapping[str, Any]) -> str:
    """Return an eight-character hash of the values."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
