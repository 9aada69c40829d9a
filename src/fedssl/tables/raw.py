"""The raw numbers of a table as JSON."""

from __future__ import annotations

import math
from typing import Any

from fedssl.tables.page import heading, named_overrides
from fedssl.tables.results import Results, TestedOrdering


def as_json(results: Results) -> dict[str, Any]:
    """Return the raw numbers; infinite numbers (target never reached) become null."""
    return {
        "recipe": results.table.name,
        "title": heading(results),
        "scale": results.table.scale,
        "seeds": results.seeds,
        "first_seed": results.first_seed,
        "tuning": results.tuning,
        "selection": dict(results.selection or {}),
        "overrides": named_overrides(results),
        "cells": [
            {
                "row": outcome.cell.row,
                "column": outcome.cell.column,
                "seed": outcome.cell.seed,
                "measure": outcome.cell.measure.kind,
                "number": _finite(outcome.number),
                "untrained": _finite(outcome.untrained),
                "seconds": outcome.seconds,
                "run": outcome.path.name,
                "error": outcome.error,
            }
            for outcome in results.outcomes
        ],
        "published": [
            {"row": row, "column": column, "number": mean.number, "spread": mean.spread, "seeds": mean.n}
            for (row, column), mean in results.means.items()
        ],
        "paper": {
            row.name: {column: list(known) for column, known in row.paper.items()}
            for row in results.table.rows
        },
        "orderings": [_ordering_json(each) for each in results.orderings()],
        "summary": results.summary(),
    }


def _ordering_json(judged: TestedOrdering) -> dict[str, Any]:
    verdict = judged.verdict
    found: dict[str, Any] = {
        "claim": judged.claim,
        "ordering": judged.text,
        "where": judged.where,
        "difference": _finite(verdict.mean),
        "spread": verdict.spread,
        "interval": None if verdict.low is None else [verdict.low, verdict.high],
        "confidence": verdict.confidence,
        "p": verdict.p,
        "p_corrected": verdict.p_corrected,
        "p_permutation": verdict.p_permutation,
        "n": verdict.n,
        "spread_is_bound": judged.bounded,
        "failed": list(verdict.failed),
        "detectable": verdict.detectable,
        "paper": _finite(judged.paper),
        "contradicted_by_paper": judged.contradicted,
        "verdict": verdict.word,
    }
    return found | ({"parts": [_ordering_json(part) for part in judged.parts]} if judged.parts else {})


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
