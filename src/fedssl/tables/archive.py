"""The link between campaigns and the store: finds stored cells, and stores finished ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedssl.storage import read_lines
from fedssl.tables import curves
from fedssl.tables.cells import Cell, digest, portable
from fedssl.tables.measure import CURVES, Reading, of_curve
from fedssl.tables.results import Results
from fedssl.tables.runner import Outcome
from fedssl.tables.store import Difference, Number, Place, Record, Stale, Store, same
from fedssl.tables.table import Measure, Table


class Archive:
    """Reads and writes a store for the tables of a campaign.

    Subclasses define the file for a table's results, the other cells that a result serves, and picture data.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def file(self, table: Table) -> str:
        """Return the store's file for results of this table."""
        return table.name

    def places(self, table: Table, cell: Cell) -> tuple[Place, ...]:
        """Return the cells of tables that a result serves."""
        return (place_of(table, cell),)

    def panels(self, table: Table, outcome: Outcome) -> dict[str, Any]:
        """Return picture data that are neither numbers nor curves, by kind."""
        return {}

    def find(self, table: Table, cell: Cell) -> Outcome | Stale | None:
        """Return the stored result of a cell; None if it lacks the number that the table needs."""
        found = self.store.find(cell, place_of(table, cell))
        if not isinstance(found, Record):
            return found
        path = Path(found.run)
        if found.error:
            return Outcome(cell, path, error=found.error, record=found)
        reading = _reading(found, cell)
        if reading is None or not _has_curves(found, table):
            return None
        return Outcome(cell, path, reading.number, reading.untrained, found.seconds, record=found)

    def mean(self, table: Table, cell: Cell) -> Number | Stale | None:
        """Return the stored result of a cell if only the mean over seeds was published."""
        found = self.store.find(cell, place_of(table, cell), several=True)
        return found.number(cell.measure) if isinstance(found, Record) else found

    def differences(self, table: Table) -> dict[tuple[str, str], Difference]:
        """Return published differences of the table's orderings, by text and place."""
        return {
            (each.text, each.where): each
            for each in self.store.differences
            if (each.table, each.scale) == (table.name, table.scale)
        }

    def seeds(self, table: Table) -> set[int]:
        """Return the seeds of the table that have stored results."""
        return self.store.seeds(
            Place(table=table.name, scale=table.scale, row=row.name, column=column.name)
            for row in table.rows
            for column in table.columns
        )

    def range_of_seeds(self, tables: Sequence[Table]) -> tuple[int, int]:
        """Return the first stored seed and the number of seeds; 0 and 3 without stored results."""
        seeds = {seed for table in tables for seed in self.seeds(table)}
        return (min(seeds), max(seeds) - min(seeds) + 1) if seeds else (0, 3)

    def keep(self, table: Table, outcome: Outcome) -> None:
        """Store a line for a cell that finished or failed."""
        if outcome.record is None:
            record = record_of(table, outcome)
            places = self.places(table, outcome.cell)
            panels = {} if outcome.error else self.panels(table, outcome)
            self.store.add(self.file(table), record.model_copy(update={"places": places, "panels": panels}))


def place_of(table: Table, cell: Cell) -> Place:
    return Place(table=table.name, scale=table.scale, row=cell.row, column=cell.column)


def record_of(table: Table, outcome: Outcome) -> Record:
    """Create a line of the store from the folder of a run."""
    config = portable(outcome.cell.config)
    base = Record(config=config, seed=outcome.cell.seed, key=digest(config), run=outcome.path.name)
    if outcome.error:
        return base.model_copy(update={"error": outcome.error})
    result = json.loads((outcome.path / "result.json").read_text(encoding="utf-8"))
    versions = result.get("versions", {})
    return base.model_copy(
        update={
            "numbers": tuple(_numbers(outcome, result)),
            "curves": _curves(table, outcome),
            "numerics": int(versions.get("numerics", 1)),
            "version": versions.get("fedssl", ""),
            "processor": versions.get("processor", ""),
            "seconds": round(result["seconds"], 1),
        }
    )


def _numbers(outcome: Outcome, result: dict[str, Any]) -> list[Number]:
    """Return the cell's number, and other measurements of the run."""
    entries = [entry for entry in result["probes"] if entry["protocol"] in ("linear", "knn")]
    entries += [entry for entry in read_lines(outcome.path / "evaluations.jsonl") if "accuracy" in entry]
    kept: list[tuple[Measure, float, float | None]] = []
    for entry in entries:
        with suppress(ValidationError):  # a user's own protocol
            measure = Measure(kind=entry["protocol"], config=entry.get("overrides", {}))
            if not same(measure, outcome.cell.measure):
                untrained = entry.get("untrained")
                kept.append(
                    (measure, 100 * entry["accuracy"], None if untrained is None else 100 * untrained)
                )
    assert outcome.number is not None
    return [
        Number(
            measure=each.model_dump(exclude_defaults=True),
            number=number,
            untrained=untrained,
        )
        for each, number, untrained in [*kept, (outcome.cell.measure, outcome.number, outcome.untrained)]
    ]


def _curves(table: Table, outcome: Outcome) -> dict[str, dict[str, list[list[float]]]]:
    """Return the curves; empty if the run lacks these numbers, so that they are not searched for again."""
    return {key: curves.pack(outcome.points(key)) for key in _wanted(table, outcome.cell)}


def _wanted(table: Table, cell: Cell) -> list[str]:
    figure = table.figure
    drawn = [figure.y] if figure is not None and figure.kind == "curve" else []
    measured = [CURVES[cell.measure.kind]] if cell.measure.kind in CURVES else []
    return list(dict.fromkeys([*curves.ALWAYS, *drawn, *measured]))


def _has_curves(record: Record, table: Table) -> bool:
    """Whether the picture can be drawn without the run."""
    figure = table.figure
    return figure is None or figure.kind != "curve" or figure.y in record.curves


def _reading(record: Record, cell: Cell) -> Reading | None:
    number = record.number(cell.measure)
    if number is not None:
        return Reading(number.number, number.untrained)
    key = CURVES.get(cell.measure.kind)
    if key is None or key not in record.curves:
        return None
    curve = [(round_number, value) for round_number, _, value in record.points(key)]
    epochs = cell.config.train.epochs if cell.measure.kind == "epochs-to" else 1.0
    return of_curve(cell.measure, curve, epochs)


def with_archive(results: Results, archive: Archive) -> Results:
    """Add archived results to the results of a table."""
    outcomes: list[Outcome] = []
    stale: dict[str, Stale] = {}
    means: dict[tuple[str, str], Number] = {}
    for cell in results.planned:
        found = archive.find(results.table, cell)
        if isinstance(found, Stale):
            stale[cell.name] = found
        elif found is not None:
            outcomes.append(found)
    known = {(outcome.cell.row, outcome.cell.column) for outcome in outcomes}
    for cell in results.planned:
        if (cell.row, cell.column) not in known:
            mean = archive.mean(results.table, cell)
            if isinstance(mean, Stale):
                stale.setdefault(cell.name, mean)
            elif mean is not None:
                means[cell.row, cell.column] = mean
    return replace(
        results, outcomes=outcomes, stale=stale, means=means, differences=archive.differences(results.table)
    )
