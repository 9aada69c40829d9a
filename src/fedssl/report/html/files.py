"""Reads the files of a run, without its images and model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedssl.audit.files import FILE, FOLDER
from fedssl.config import MAIN_KEY, Config, flatten, from_values, read_toml
from fedssl.errors import ConfigError
from fedssl.rundir import RunDir
from fedssl.storage import read_json, read_lines

AUDIT = f"{FOLDER}/{FILE}"


@dataclass(frozen=True)
class RunFiles:
    """A run directory at one moment; missing parts are empty."""

    path: Path
    values: dict[str, Any]  # config.toml as written, by dotted key
    config: Config | None  # None if this version cannot read it
    problem: str  # the reason
    metrics: list[dict[str, Any]]
    result: dict[str, Any]
    partition: dict[str, Any]
    evaluations: list[dict[str, Any]]
    audit: dict[str, Any]  # by attack
    written: float  # when any file was last changed, in seconds since 1970

    @property
    def seed(self) -> int:
        return int(self.values.get("seed", 0))

    @property
    def rounds(self) -> int:
        """The number of rounds of the complete run."""
        return int(self.values.get("rounds", len(self.metrics)))

    @property
    def done(self) -> int:
        return int(self.metrics[-1]["round"]) if self.metrics else 0

    @property
    def probes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.result.get("probes", [])
        return found

    @property
    def sites(self) -> list[str]:
        """The names of the clients, if any."""
        return [str(name) for name in self.values.get("engine.sites", ())]

    def value(self, key: str, otherwise: Any = "") -> Any:
        return self.values.get(key, otherwise)

    def data(self) -> str:
        """The name of the images: the file or folder, if the data set is one."""
        if self.sites:
            return f"images at {len(self.sites)} sites"
        name, root = str(self.value("data.name")), str(self.value("data.root"))
        return Path(root).stem.removesuffix("_train") or name if name in ("npz", "folder") else name

    def changed(self) -> set[str]:
        """Return implementations and keys that differ from the defaults."""
        if self.config is None:
            return set()
        resolved = self.config.to_dict()
        chosen = {section: {main: resolved[section][main]} for section, main in MAIN_KEY.items()}
        plain = dict(flatten(from_values(chosen).to_dict()))
        first = dict(flatten(from_values({}).to_dict()))
        plain |= {f"{section}.{main}": first[f"{section}.{main}"] for section, main in MAIN_KEY.items()}
        here = dict(flatten(resolved))
        written_out = {"engine.threads", "engine.wave"}  # changed in every run
        return {key for key in here if here[key] != plain.get(key)} - written_out


def read(path: str | Path) -> RunFiles:
    """Read the current files of a run."""
    directory = RunDir.open(path)
    raw = read_toml(directory.path / "config.toml")
    try:
        config, problem = directory.config(), ""
    except ConfigError as error:  # a class in a file that is gone or not trusted, or a key of another version
        config, problem = None, str(error)
    names = ("config.toml", "metrics.jsonl", "result.json", "partition.json", "evaluations.jsonl")
    files = [directory.path / name for name in names]
    return RunFiles(
        path=directory.path,
        values=dict(flatten(raw if config is None else config.to_dict())),
        config=config,
        problem=problem,
        metrics=directory.metrics(),
        result=_json(directory.result_file),
        partition=_json(directory.path / "partition.json"),
        evaluations=list(read_lines(directory.path / "evaluations.jsonl")),
        audit=_json(directory.path / AUDIT),
        written=max(file.stat().st_mtime for file in files if file.exists()),
    )


def stamp(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Return a value that changes whenever any file of the run changes."""
    names = (
        "metrics.jsonl",
        "result.json",
        "partition.json",
        "evaluations.jsonl",
        "samples",
        f"{FOLDER}/{FILE}",
    )
    found = []
    for name in names:
        try:
            state = (path / name).stat()
        except FileNotFoundError:
            continue
        found.append((name, state.st_mtime_ns, state.st_size))
    return tuple(found)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def last(line_values: list[Mapping[str, Any]], key: str) -> Any:
    """Return the latest value of a key that not every mapping has."""
    return next((values[key] for values in reversed(line_values) if key in values), None)


def _json(file: Path) -> dict[str, Any]:
    return read_json(file) if file.exists() else {}
