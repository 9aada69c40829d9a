"""`fedssl compare`: compare settings over several seeds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from fedssl.config import MAIN_KEY, flatten, read_toml
from fedssl.errors import ConfigError, did_you_mean
from fedssl.options import Options
from fedssl.report.sheet import Sheet
from fedssl.statistics import mean_and_spread
from fedssl.tables.markdown import NOTHING, ours, untrained
from fedssl.tables.results import Results
from fedssl.tables.table import ONLY_COLUMN, Column, Ordering, Row, Table, as_measure, build, check

WORDS = {"held": "higher", "not held": "lower"}  # verdicts on "row > reference", two-sided
Values = Mapping[str, Sequence[Any]]


class File(Options):
    """A comparison as a TOML file."""

    title: str = "comparison"
    seeds: int = Field(0, ge=0)
    measure: Any = "linear"
    against: str = ""
    base: dict[str, Any] = Field({})
    sweep: dict[str, list[Any]] = Field({})
    across: dict[str, list[Any]] = Field({})
    row: list[dict[str, Any]] = Field([])
    column: list[dict[str, Any]] = Field([])


@dataclass(frozen=True)
class Comparison:
    """The settings to compare.

    Attributes:
        base: keys of every run, by dotted name.
        sweep: keys with several values; every combination becomes a row.
        across: keys with several values; every combination becomes a column.
        rows, columns: settings with names chosen by the user.
        against: the row that the others are compared with; empty: the first row.
        measure: what is measured: "linear", "knn", …
        title: the title of the comparison.
        seeds: number of seeds; 0: not specified.
        command: what the user wrote, without seeds.
    """

    base: Mapping[str, Any] = field(default_factory=dict)
    sweep: Values = field(default_factory=dict)
    across: Values = field(default_factory=dict)
    rows: Sequence[Row] = ()
    columns: Sequence[Column] = ()
    against: str = ""
    measure: Any = "linear"
    title: str = "comparison"
    seeds: int = 0
    command: str = "fedssl compare"

    def table(self) -> Table:
        """The comparison as a table of runs.

        Raises:
            ConfigError: there is nothing to compare, a name occurs twice, or a key is the seed.
        """
        if any("seed" in keys for keys in (self.base, self.sweep, self.across)):
            raise ConfigError("seed is not a key to compare: choose seeds with --first-seed and --seeds")
        named = self.rows or [Row(name="")]
        rows = [
            Row(name=_join(row.name, name), config=_merge(row.config, nested(keys)), measure=row.measure)
            for row in named
            for name, keys in combinations(self.sweep)
        ]
        columns = list(self.columns) or [
            Column(name=name or ONLY_COLUMN, config=nested(keys)) for name, keys in combinations(self.across)
        ]
        if len(rows) * len(columns) < 2:
            raise ConfigError(
                "nothing to compare: give a key several values, such as method.name=fedavg,fedema"
            )
        rows = [row.model_copy(update={"name": row.name or "run"}) for row in rows]
        names = [row.name for row in rows]
        against = self.against or names[0]
        if against not in names:
            raise ConfigError(f"--against {against!r}: {did_you_mean(against, names)}")
        others = tuple(name for name in names if name != against)
        orderings = (Ordering(better=others, worse=(against,)),) if others else ()
        measure = as_measure(self.measure)
        check(rows, columns, measure, orderings, None, self.title)
        return Table(
            name="compare",
            origin=self.title,
            title=self.title,
            command=self.command,
            measure=measure,
            base=nested(self.base),
            rows=tuple(rows),
            columns=tuple(columns),
            orderings=orderings,
        )


def from_file(file: str | Path) -> Comparison:
    """Load a comparison from a TOML file; see `File` for its keys."""
    given = build(File, read_toml(file), str(file))
    return Comparison(
        base=_dotted(given.base),
        sweep=given.sweep,
        across=given.across,
        rows=[build(Row, row, str(file)) for row in given.row],
        columns=[build(Column, column, str(file)) for column in given.column],
        against=given.against,
        measure=given.measure,
        title=given.title,
        seeds=given.seeds,
    )


def split_values(text: str) -> list[str]:
    """Split `a,b` into values; commas within brackets or quotes are kept."""
    values, depth, quoted = [""], 0, ""
    for letter in text:
        if quoted or letter in "\"'":
            quoted = "" if letter == quoted else quoted or letter
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quoted:
            values.append("")
        else:
            values[-1] += letter
    return values


def combinations(sweep: Values) -> list[tuple[str, dict[str, Any]]]:
    """Return every combination of values with its name: `simclr · train.lr=0.1`."""
    choices = [[(key, value) for value in values] for key, values in sweep.items()]
    return [
        (" · ".join(_name(key, value) for key, value in chosen), dict(chosen))
        for chosen in itertools.product(*choices)
    ]


def _name(key: str, value: Any) -> str:
    section, _, last = key.partition(".")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if MAIN_KEY.get(section) == (last or MAIN_KEY.get(section)) else f"{key}={text}"


def nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """{"train.lr": 0.1} → {"train": {"lr": 0.1}}."""
    values: dict[str, Any] = {}
    for key, value in keys.items():
        *sections, last = key.split(".")
        place = values
        for section in sections:
            below = place.get(section, {})
            place[section] = {MAIN_KEY[section]: below} if isinstance(below, str) else dict(below)
            place = place[section]
        place[last] = value
    return values


def _dotted(values: Mapping[str, Any]) -> dict[str, Any]:
    return dict(flatten(values))


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    return nested({**_dotted(under), **_dotted(over)})


def _join(*names: str) -> str:
    return " · ".join(name for name in names if name)


# --- results ----------------------------------------------------------------------------------------


def sheets(results: Results) -> list[Sheet]:
    """Return the numbers of rows and untrained encoder, and the comparisons with the reference row."""
    starts = [untrained(results, column) for column in results.columns]
    numbers = Sheet(
        f"{results.table.title}: mean ± standard deviation (seeds)",
        ["", *results.columns],
        [
            *([row, *(ours(results, row, column) for column in results.columns)] for row in results.rows),
            *([["untrained encoder", *(start or NOTHING for start in starts)]] if any(starts) else []),
        ],
        [_record(results, row, column) for row in results.rows for column in results.columns],
    )
    return [numbers, *([_verdicts(results)] if results.table.orderings else [])]


def _record(results: Results, row: str, column: str) -> dict[str, Any]:
    numbers, start = results.numbers(row, column), results.untrained(row, column)
    mean, spread = mean_and_spread(list(numbers.values())) if numbers else (None, None)
    before = mean_and_spread(list(start.values()))[0] if start else None
    seeds = {f"seed {seed}": number for seed, number in sorted(numbers.items())}
    place = {"row": row, "column": column, "seeds": len(numbers), "mean": mean, "spread": spread}
    return {**place, "untrained": before, **seeds}


def _verdicts(results: Results) -> Sheet:
    (ordering,) = results.table.orderings
    body, records = [], []
    for judged in results.orderings():
        verdict, name = judged.verdict, judged.text.split(" > ")[0].split(" < ")[0]
        word = WORDS.get(verdict.word, verdict.word)
        interval = NOTHING if verdict.low is None else f"[{verdict.low:+.2f}, {verdict.high:+.2f}]"
        p = NOTHING if verdict.p_corrected is None else f"{verdict.p_corrected:.3f}"
        difference = NOTHING if verdict.mean is None else f"{verdict.mean:+.2f}"
        body.append([name, judged.where, difference, interval, p, str(verdict.n), word])
        records.append(
            {
                "row": name,
                "column": judged.where,
                "against": ordering.worse[0],
                "difference": verdict.mean,
                "low": verdict.low,
                "high": verdict.high,
                "p_corrected": verdict.p_corrected,
                "n": verdict.n,
                "verdict": word,
            }
        )
    title = f"Compared with {ordering.worse[0]}, paired over seeds (p corrected by Holm)"
    return Sheet(title, ["", "column", "difference", "interval", "p", "n", "verdict"], body, records)
