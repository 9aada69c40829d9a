"""The number of a cell, read from a finished run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedssl.config import flatten
from fedssl.errors import RunError, did_you_mean
from fedssl.storage import read_lines
from fedssl.tables.curves import points
from fedssl.tables.table import Measure


@dataclass(frozen=True)
class Reading:
    """A number in the table's unit (percent, or rounds; inf: never reached), and the untrained encoder's."""

    number: float
    untrained: float | None


def format_number(number: float, measure: Measure) -> str:
    """Format a number: 83.34, 40, or not reached."""
    if measure.counts:
        return f"{number:g}" if number < float("inf") else "not reached"
    return f"{number:.{measure.digits}f}"


def read_number(path: Path, measure: Measure) -> Reading:
    """Return the number of a run; missing evaluations are computed now and stored with the run."""
    if measure.kind in CURVES:
        curve = points(read_lines(path / "metrics.jsonl"), CURVES[measure.kind])
        epochs = _epochs(path) if measure.kind == "epochs-to" else 1.0
        return of_curve(measure, [(number, value) for number, _, value in curve], epochs)
    options = dict(flatten(measure.config))
    if measure.kind == "drift-from-mean":
        found = _known(path, "drift", options) or evaluate(path, "drift", options)
        return Reading(found["from_mean"], None)
    if measure.kind == "generate":
        return _generated(path, measure, options)
    if measure.kind in PRECISIONS:
        return _precision(path, PRECISIONS[measure.kind], options)
    entry = _known(path, measure.kind, options) or evaluate(path, measure.kind, options)
    if measure.kind == "backdoor":
        return Reading(100 * entry["success"], 100 * entry["untrained"])
    if measure.style:
        entry = _of_style(entry, measure.style)
    return Reading(100 * entry["accuracy"], 100 * entry["untrained"])


def _generated(path: Path, measure: Measure, options: Mapping[str, Any]) -> Reading:
    """Return a number from `fedssl generate`, computed now or before; `clients.2` is the third in a list."""
    known = [
        line["found"]
        for line in read_lines(path / "generated.jsonl")
        if (line["what"], line["options"]) == (measure.what, dict(options))
    ]
    found: Any = known[-1] if known else generate(path, measure.what, options)
    for key in measure.number.split("."):
        try:
            found = found[int(key)] if isinstance(found, list) else found[key]
        except (KeyError, IndexError, ValueError):
            raise RunError(f"{measure.what} computes no number {measure.number!r} in this run") from None
    return Reading(found if measure.plain else 100 * found, None)


def generate(path: Path, what: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Run one of the uses of `fedssl generate` (slow). Results are stored in the run's generated.jsonl."""
    from fedssl.generative.use import generate
    from fedssl.rundir import RunDir

    return generate(RunDir.open(path), what, options)


# Two numbers of one evaluation: the protocol `detection`.
PRECISIONS = {"detection": "box", "segmentation": "mask"}


def _precision(path: Path, kind: str, options: Mapping[str, Any]) -> Reading:
    entry = _known(path, "detection", options) or evaluate(path, "detection", options)
    if kind not in entry:
        raise RunError(f"no number: {entry['images'].split(':')[0]} has boxes but no masks")
    return Reading(100 * entry[kind]["ap"], 100 * entry["untrained"][kind]["ap"])


def _of_style(entry: Mapping[str, Any], style: str) -> dict[str, Any]:
    """Return the part of an entry that concerns one style."""
    known = {row["style"]: row for row in entry.get("styles", [])}
    if style not in known:
        raise RunError(f"{entry['protocol']} has no style {style!r}: {did_you_mean(style, known)}")
    return dict(known[style])


def evaluate(path: Path, protocol: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Run one of the protocols of `fedssl eval` (slow). Results are stored in the run's evaluations.jsonl."""
    from fedssl.api import Run

    return Run(path).probe(protocol, **options)


def _known(path: Path, protocol: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
    found = []
    if not options:
        result = json.loads((path / "result.json").read_text(encoding="utf-8"))
        if protocol in ("linear", "knn") and result.get("why_no_probes"):
            raise RunError(f"no number: {result['why_no_probes']}")
        found = [entry for entry in result["probes"] if entry["protocol"] == protocol]
    found += [
        entry
        for entry in read_lines(path / "evaluations.jsonl")
        if entry["protocol"] == protocol and entry["overrides"] == dict(options)
    ]
    return found[0] if found else None


# Numbers that are computed from a curve over rounds, and the curve's key.
CURVES = {
    "rounds-to": "probe.knn",
    "epochs-to": "probe.knn",
    "oscillation": "angle",
    "drift": "drift",
    "angle-weights": "angle_weights",
    "angle-gamma": "angle_gamma",
    "angle-beta": "angle_beta",
    "mu-capped": "mu_capped",
    "predictor-replaced": "predictor_replaced",
}
SHARES = ("mu-capped", "predictor-replaced")
MEANS = ("angle-weights", "angle-gamma", "angle-beta", *SHARES)  # over the rounds that have them


def of_curve(measure: Measure, curve: Sequence[tuple[int, float]], epochs: float) -> Reading:
    """Return the number computed from a curve.

    Args:
        measure: a measure of one of the kinds in CURVES.
        curve: rounds and values.
        epochs: local epochs per round, for epochs-to.
    """
    values = [value for _, value in curve]
    if measure.kind == "oscillation":
        return Reading(1000 * oscillation(values), None)
    if measure.kind == "drift":
        return Reading(values[-1], None)
    if measure.kind in MEANS:
        if not values:
            raise RunError(f"no round has {CURVES[measure.kind]}")
        return Reading((100 if measure.kind in SHARES else 1) * sum(values) / len(values), None)
    if not curve:
        raise RunError(f"{measure.kind} needs the kNN monitor: set probe.every=1 in the recipe")
    assert measure.target is not None
    reached = next((number for number, value in curve if value >= measure.target), float("inf"))
    return Reading(reached * epochs, None)


def oscillation(values: Sequence[float]) -> float:
    """Return the mean |second difference| of a curve; 0 for a straight line."""
    bends = [a - 2 * b + c for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    if not bends:
        raise RunError(f"oscillation needs at least 3 rounds, and the run has {len(values)}")
    return sum(map(abs, bends)) / len(bends)


def _epochs(path: Path) -> float:
    from fedssl.rundir import RunDir

    return RunDir.open(path).config().train.epochs
