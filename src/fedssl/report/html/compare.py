"""Several runs: seeds are grouped by setting, and settings are compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from fedssl.config import EXECUTION, MAIN_KEY
from fedssl.report.html.curves import Curve, curves, describe_curve, rank, thinned, tidy
from fedssl.report.html.files import RunFiles, is_number
from fedssl.statistics import Claim, Verdict, check_claims, mean_and_spread, paired_differences

NO_KEY = "none"
MAIN_KEYS = [f"{section}.{key}" for section, key in MAIN_KEY.items()]


@dataclass(frozen=True)
class Group:
    """Runs with configs that differ only in the seed (and in keys that do not change results)."""

    id: str
    name: str
    runs: list[RunFiles]

    def by_seed(self, measure: Measure) -> dict[int, float]:
        found = {run.seed: measure.of(run) for run in self.runs}
        return {seed: number for seed, number in found.items() if number is not None}


@dataclass(frozen=True)
class Measure:
    """A number of a whole run."""

    key: str
    label: str
    unit: str
    of: Callable[[RunFiles], float | None]
    tested: bool = False  # more is better, and settings are compared by it


# --- groups ---------------------------------------------------------------------------------------


def groups(runs: Sequence[RunFiles], given: Mapping[Path, str] | None = None) -> list[Group]:
    """Group runs in their order. A repeated config and seed forms a new group.

    `given` are names by folder; without them, groups are named by their differences.
    """
    found: dict[tuple[str, int], list[RunFiles]] = {}
    for run in runs:
        again = 0
        while any(other.seed == run.seed for other in found.get((identity(run), again), [])):
            again += 1
        found.setdefault((identity(run), again), []).append(run)
    names = _names(list(found.values()))
    names = [(given or {}).get(runs[0].path, name) for name, runs in zip(names, found.values(), strict=True)]
    return [
        Group(f"g{number}", name, sorted(members, key=lambda run: run.seed))
        for number, (name, members) in enumerate(zip(names, found.values(), strict=True))
    ]


def identity(run: RunFiles) -> str:
    """Return a run's config without its seed and without keys that do not change results."""
    return json.dumps(settings(run), sort_keys=True)


def settings(run: RunFiles) -> dict[str, Any]:
    what = {
        key: value
        for key, value in run.values.items()
        if key != "seed" and key.split(".")[0] not in EXECUTION
    }
    engine = run.config.engine.identity() if run.config is not None else {}
    return what | {f"engine.{key}": value for key, value in engine.items()}


def differences(members: Sequence[RunFiles]) -> list[dict[str, Any]]:
    """Return the keys in which settings differ, with each value (None: the setting has no such key)."""
    every = [settings(run) for run in members]
    keys = list(dict.fromkeys(key for values in every for key in values))
    order = sorted(keys, key=lambda key: (key not in MAIN_KEYS, keys.index(key)))
    rows = [{"key": key, "values": [values.get(key) for values in every]} for key in order]
    return [row for row in rows if any(value != row["values"][0] for value in row["values"][1:])]


def _names(members: Sequence[Sequence[RunFiles]]) -> list[str]:
    """Name groups by their differences: implementations first, then other keys, then folder names."""
    if len(members) == 1:
        run = members[0][0]
        return [f"{run.value('objective.name')} · {run.value('method.name')}"]
    words: list[list[str]] = [[] for _ in members]
    for row in differences([runs[0] for runs in members]):
        values, main = row["values"], row["key"] in MAIN_KEYS
        alike = [[value for value, other in zip(values, words, strict=True) if other == own] for own in words]
        for own, value, others in zip(words, values, alike, strict=True):
            if main and value is not None:
                own.append(str(value))
            elif any(other != value for other in others):  # still ambiguous
                own.append(f"{row['key']}={NO_KEY if value is None else _shown(value)}")
    names = [" · ".join(each) or runs[0].path.name for each, runs in zip(words, members, strict=True)]
    if len(set(names)) == len(names):
        return names
    return [
        f"{name} ({runs[0].path.name})" if names.count(name) > 1 else name
        for name, runs in zip(names, members, strict=True)
    ]


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# --- numbers --------------------------------------------------------------------------------------


def measures(runs: Sequence[RunFiles]) -> list[Measure]:
    """Return the numbers that at least one of the runs has."""
    protocols = list(dict.fromkeys(probe["protocol"] for run in runs for probe in run.probes))
    known = []
    for protocol in protocols:
        known += [
            Measure(
                f"{protocol}.accuracy", f"{protocol} accuracy", "percent", _probe(protocol, "accuracy"), True
            ),
            Measure(
                f"{protocol}.untrained", f"{protocol}, untrained", "percent", _probe(protocol, "untrained")
            ),
        ]
    if not all(any(probe["protocol"] == "knn" for probe in run.probes) for run in runs):
        known.append(Measure("monitor", "kNN monitor, last", "percent", _monitor, True))
    known += [
        Measure("loss", "loss, last", "number", lambda run: _last(run, "loss")),
        Measure("divergence", "divergence, last", "number", lambda run: _last(run, "divergence")),
        Measure("bytes", "bytes uploaded", "bytes", total_bytes),
        Measure("seconds", "training time", "seconds", lambda run: _sum(run, "seconds")),
        Measure("failures", "failures", "count", _failures),
    ]
    return [measure for measure in known if any(measure.of(run) is not None for run in runs)]


def _probe(protocol: str, key: str) -> Callable[[RunFiles], float | None]:
    def of(run: RunFiles) -> float | None:
        return next((float(probe[key]) for probe in run.probes if probe["protocol"] == protocol), None)

    return of


def _monitor(run: RunFiles) -> float | None:
    found = [line["probe"]["knn"] for line in run.metrics if "knn" in line.get("probe", {})]
    return float(found[-1]) if found else None


def _last(run: RunFiles, key: str) -> float | None:
    found = [line[key] for line in run.metrics if is_number(line.get(key))]
    return float(found[-1]) if found else None


def _sum(run: RunFiles, key: str) -> float | None:
    found = [line[key] for line in run.metrics if is_number(line.get(key))]
    return float(sum(found)) if found else None


def total_bytes(run: RunFiles) -> float | None:
    up, down = _sum(run, "bytes_up"), _sum(run, "bytes_down")
    return None if up is None or down is None else up + down


def _failures(run: RunFiles) -> float | None:
    return float(sum(len(line.get("failed", [])) for line in run.metrics)) if run.metrics else None


# --- the comparison -------------------------------------------------------------------------------


def comparison(found: Sequence[Group]) -> dict[str, Any]:
    """Return the part of the document that compares runs."""
    runs = [run for group in found for run in group.runs]
    known = measures(runs)
    return {
        "groups": [
            {"id": group.id, "name": group.name, "seeds": [run.seed for run in group.runs]} for group in found
        ],
        "differences": differences([group.runs[0] for group in found]),
        "measures": [
            {"key": each.key, "label": each.label, "unit": each.unit, "tested": each.tested} for each in known
        ],
        "table": [
            {"group": group.id, "cells": {each.key: cell(group, each) for each in known}} for group in found
        ],
        "pairs": [line for each in known if each.tested for line in pairs(found, each)],
        "curves": group_curves(found),
    }


def cell(group: Group, measure: Measure) -> dict[str, Any] | None:
    """Return mean and sample standard deviation over seeds."""
    numbers = list(group.by_seed(measure).values())
    if not numbers:
        return None
    mean, spread = mean_and_spread(numbers)
    return {"mean": mean, "spread": spread, "seeds": len(numbers)}


def pairs(found: Sequence[Group], measure: Measure) -> list[dict[str, Any]]:
    """Compare every two groups over their common seeds; all pairs of a measure form one family."""
    both = list(combinations(found, 2))
    shared = [paired_differences(first.by_seed(measure), second.by_seed(measure)) for first, second in both]
    verdicts = check_claims([Claim(list(differences.values())) for differences in shared])
    return [
        {
            "measure": measure.key,
            "first": first.id,
            "second": second.id,
            "seeds": list(differences),
            "mean": verdict.mean,
            "spread": verdict.spread,
            "low": verdict.low,
            "high": verdict.high,
            "p": verdict.p,
            "p_corrected": verdict.p_corrected,
            "detectable": verdict.detectable,
            "word": _word(verdict, differences),
        }
        for (first, second), differences, verdict in zip(both, shared, verdicts, strict=True)
    ]


def _word(verdict: Verdict, differences: Mapping[int, float]) -> str:
    if verdict.n < 2:
        return "one seed only" if verdict.n else "no shared seeds"
    if not any(differences.values()):
        return "the same"
    return {"held": "higher", "not held": "lower", "undecided": "undecided"}[verdict.word]


def group_curves(found: Sequence[Group]) -> list[dict[str, Any]]:
    """Return, for every number, one line per group: mean over seeds and standard deviation."""
    drawn: dict[str, dict[str, dict[int, list[float]]]] = {}
    for group in found:
        for run in group.runs:
            for curve in curves(run.metrics):
                _gather(drawn.setdefault(curve.key, {}).setdefault(group.id, {}), curve)
    return [
        {**describe_curve(key), "lines": [_line(group, points) for group, points in lines.items()]}
        for key, lines in sorted(drawn.items(), key=lambda item: rank(item[0]))
    ]


def _gather(points: dict[int, list[float]], curve: Curve) -> None:
    for number, value in curve.points.items():
        points.setdefault(number, []).append(value)


def _line(group: str, points: Mapping[int, list[float]]) -> dict[str, Any]:
    rounds = thinned(sorted(points))
    pairs = [mean_and_spread(points[number]) for number in rounds]
    return {
        "group": group,
        "rounds": rounds,
        "values": [tidy(mean) for mean, _ in pairs],
        "spread": [tidy(spread) for _, spread in pairs],
        "seeds": [len(points[number]) for number in rounds],
    }
