"""A comparison of runs as tables, written by `fedssl report RUNS -o table.csv`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedssl.report.html.compare import Group, Measure, cell, groups, measures, pairs
from fedssl.report.html.data import unique
from fedssl.report.sheet import Sheet

NOTHING = "–"


def sheets_of_runs(paths: Sequence[str | Path]) -> list[Sheet]:
    """Return the numbers of every setting, and the comparison of every two settings."""
    runs = unique(paths)
    found, known = groups(runs), measures(runs)
    tested = [measure for measure in known if measure.tested]
    numbers = Sheet(
        "Mean ± standard deviation over seeds",
        ["setting", "seeds", *(measure.label for measure in known)],
        [
            [group.name, str(len(group.runs)), *(_text(cell(group, measure), measure) for measure in known)]
            for group in found
        ],
        [record for group in found for measure in known if (record := _record(group, measure))],
    )
    return [numbers, *(_pairs(found, measure) for measure in tested if len(found) > 1)]


def _pairs(found: Sequence[Group], measure: Measure) -> Sheet:
    names = {group.id: group.name for group in found}
    lines = pairs(found, measure)
    body = [
        [
            f"{names[line['first']]} − {names[line['second']]}",
            _points(line["mean"]),
            NOTHING if line["low"] is None else f"[{_points(line['low'])}, {_points(line['high'])}]",
            NOTHING if line["p_corrected"] is None else f"{line['p_corrected']:.3f}",
            str(len(line["seeds"])),
            line["word"],
        ]
        for line in lines
    ]
    records = [
        {
            "setting": names[line["first"]],
            "against": names[line["second"]],
            "measure": measure.key,
            "seeds": len(line["seeds"]),
            "difference": line["mean"],
            "low": line["low"],
            "high": line["high"],
            "p_corrected": line["p_corrected"],
            "verdict": line["word"],
        }
        for line in lines
    ]
    title = f"{measure.label}: differences in points, paired over seeds, p corrected by Holm"
    return Sheet(title, ["settings", "difference", "interval", "p", "seeds", "verdict"], body, records)


def _record(group: Group, measure: Measure) -> dict[str, Any] | None:
    number = cell(group, measure)
    if number is None:
        return None
    return {
        "setting": group.name,
        "measure": measure.key,
        "seeds": number["seeds"],
        "mean": number["mean"],
        "spread": number["spread"],
    }


def _text(number: dict[str, Any] | None, measure: Measure) -> str:
    if number is None:
        return NOTHING
    scale, unit, digits = (100, " %", 1) if measure.unit == "percent" else (1, "", 4)
    spread = "" if number["spread"] is None else f" ± {_number(scale * number['spread'], digits)}"
    return f"{_number(scale * number['mean'], digits)}{spread}{unit}"


def _number(value: float, digits: int) -> str:
    return f"{value:.1f}" if digits == 1 else f"{value:.{digits}g}"


def _points(share: float | None) -> str:
    return NOTHING if share is None else f"{100 * share:+.1f}"
