"""Results as data: files with one line per finished cell, from which pages and pictures are generated.

A line is self-contained: config, seed, numbers, curves, and where they come from. Several processes may
append to one file; lines are written in one piece, and the next writer removes a truncated last line.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field

from fedssl._version import change_since
from fedssl.config import flatten
from fedssl.config import load as load_config
from fedssl.errors import ConfigError
from fedssl.options import Options
from fedssl.storage import read_lines
from fedssl.tables.cells import Cell, portable
from fedssl.tables.curves import unpack
from fedssl.tables.table import Measure

Address = tuple[str, str, str, int | None]  # data, objective, method, seed


class Place(Options):
    """A cell of a table with all its seeds."""

    table: str
    scale: str
    row: str
    column: str


class Number(Options):
    """A measured number; spreads and `n` are set if only the mean over several seeds is known."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    measure: dict[str, Any] = Field({}, description="difference to the default measure")
    number: float
    untrained: float | None = None
    spread: float | None = None
    untrained_spread: float | None = None
    n: int = 1

    def is_of(self, measure: Measure) -> bool:
        return same(Measure(**self.measure), measure)


def same(one: Measure, other: Measure) -> bool:
    """Whether both define the same number; keys of their config may be nested or dotted."""
    plain = [each.model_copy(update={"config": dict(flatten(each.config))}) for each in (one, other)]
    return plain[0] == plain[1]


class Record(Options):
    """A line of the store: a run and what was measured.

    Attributes:
        config: what the run computes (see `portable`).
        seed: None if only the mean over seeds is known.
        key: the hash of the config.
        places: the cells of tables that use it.
        numbers: what was measured; later lines of the same run add to them.
        curves: numbers over rounds, by key of metrics.jsonl (see `fedssl.tables.curves`).
        panels: data of pictures that are neither numbers nor curves, by kind.
        error: why there are no numbers.
        flaw: why the numbers must not be used.
        numerics, version, processor, seconds, run: where the numbers come from.
    """

    model_config = ConfigDict(ser_json_inf_nan="strings")

    config: dict[str, Any]
    seed: int | None
    key: str = ""
    places: tuple[Place, ...] = ()
    numbers: tuple[Number, ...] = ()
    curves: dict[str, dict[str, list[list[float]]]] = Field({}, description="by key, then by client")
    panels: dict[str, Any] = Field({}, description="by kind of picture")
    error: str = ""
    flaw: str = ""
    numerics: int = 1
    version: str = ""
    processor: str = ""
    seconds: float = 0.0
    run: str = ""

    def number(self, measure: Measure) -> Number | None:
        """Return the latest value."""
        return next((number for number in reversed(self.numbers) if number.is_of(measure)), None)

    def points(self, key: str) -> Iterator[tuple[int, int, float]]:
        """Return round, client and value of a curve."""
        return unpack(self.curves.get(key, {}))

    def over(self, older: Record) -> Record:
        """Merge another line of the same run."""
        return self.model_copy(
            update={
                "places": tuple(dict.fromkeys((*older.places, *self.places))),
                "numbers": (*older.numbers, *self.numbers),
                "curves": {**older.curves, **self.curves},
                "panels": {**older.panels, **self.panels},
            }
        )


class Difference(Options):
    """A published difference between two sides of an ordering whose single seeds are not known."""

    table: str
    scale: str
    text: str
    where: str
    mean: float
    spread: float
    n: int


@dataclass(frozen=True)
class Stale:
    """A stored result that is out of date."""

    record: Record
    why: str


class Store:
    """All lines of the files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._records: dict[Address, list[Record]] = {}
        self.differences: list[Difference] = []
        for file in sorted(folder.glob("*.jsonl")):
            for line in read_lines(file):
                if "text" in line:
                    self.differences.append(Difference(**line))
                else:
                    self._remember(Record(**line))

    def add(self, file: str, record: Record) -> None:
        """Append a line to FOLDER/FILE.jsonl, unless it adds nothing."""
        known = [
            each
            for each in self._records.get(_address(record), ())
            if each.config == record.config and each.numerics == record.numerics
        ]
        if known and _is_contained(record, reduce(lambda older, newer: newer.over(older), known)):
            return
        append(self.folder / f"{file}.jsonl", record.model_dump_json(exclude_defaults=True))
        self._remember(record)

    def find(self, cell: Cell, place: Place, several: bool = False) -> Record | Stale | None:
        """Return the result of a cell.

        Args:
            cell: the cell with its current config.
            place: its position in a table; results of this place with another config are found as stale.
            several: look for the mean over seeds instead of a single seed.

        Returns:
            The merged record of the run; `Stale` if all results have another config or older numerics; None
            if there are no results.
        """
        seed = None if several else cell.seed
        wanted, found, stale = portable(cell.config), None, None
        for record in self._records.get(_address_of(wanted, seed), ()):
            if with_current_defaults(record) != wanted:
                continue
            why = _flaw(record)
            if why:
                stale = Stale(record, why)
            else:
                found = record if found is None else record.over(found)
        if found is not None:
            return found
        return stale or self._of_place(place, seed, wanted)

    def seeds(self, places: Iterable[Place]) -> set[int]:
        """Return the seeds for which any of the places has a result."""
        wanted = set(places)
        return {
            record.seed
            for records in self._records.values()
            for record in records
            if record.seed is not None and not wanted.isdisjoint(record.places)
        }

    def tables(self) -> set[tuple[str, str]]:
        """Return names and scales of the tables that have results."""
        records = (record for listed in self._records.values() for record in listed)
        return {(place.table, place.scale) for record in records for place in record.places}

    def _of_place(self, place: Place, seed: int | None, wanted: Mapping[str, Any]) -> Stale | None:
        for records in self._records.values():
            for record in reversed(records):
                if record.seed == seed and place in record.places:
                    return Stale(record, record.flaw or _describe_difference(record.config, wanted))
        return None

    def _remember(self, record: Record) -> None:
        self._records.setdefault(_address(record), []).append(record)


def append(file: Path, line: str) -> None:
    """Append a line to a file to which other processes append as well."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a+b") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        opened.seek(0)
        content = opened.read()
        opened.truncate(content.rfind(b"\n") + 1)  # a truncated last line
        opened.write(line.encode() + b"\n")
        opened.flush()
        os.fsync(opened.fileno())


def with_current_defaults(record: Record) -> dict[str, Any]:
    """Return the record's config with defaults for new keys; unchanged if it is no longer valid."""
    return _with_defaults(json.dumps(record.config, sort_keys=True))


@cache
def _with_defaults(config: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(config)
    try:
        return portable(load_config(values))
    except ConfigError:  # a key that no longer exists
        return values


def _flaw(record: Record) -> str:
    """Return why numbers of this config are out of date."""
    change = change_since(record.numerics, dict(flatten(with_current_defaults(record))))
    return record.flaw or (change.why if change else "")


def _address(record: Record) -> Address:
    return _address_of(record.config, record.seed)


def _address_of(config: Mapping[str, Any], seed: int | None) -> Address:
    """Return the key under which a record is stored; new config keys do not change it."""
    return config["data"]["name"], config["objective"]["name"], config["method"]["name"], seed


def _describe_difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return `train.lr was 0.1, is 0.25`; new and removed keys are only listed if nothing else differs."""
    old, new = dict(flatten(before)), dict(flatten(now))
    shared = [key for key in new if key in old and old[key] != new[key]]
    texts = [f"{key} was {old[key]}, is {new[key]}" for key in shared]
    texts += [
        f"{key} is {'removed' if key in old else 'new'}" for key in old.keys() ^ new.keys() if not texts
    ]
    return "; ".join(texts)


def _is_contained(record: Record, known: Record) -> bool:
    """Whether every part of a record is already in an earlier line."""
    return (
        set(record.places) <= set(known.places)
        and all(number in known.numbers for number in record.numbers)
        and record.curves.keys() <= known.curves.keys()
        and record.panels.keys() <= known.panels.keys()
        and record.error == known.error
    )
