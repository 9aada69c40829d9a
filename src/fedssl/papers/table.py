"""Numbers beside the paper's, as Markdown and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedssl.config import flatten
from fedssl.papers.cells import overlay, values_of
from fedssl.papers.measure import shown
from fedssl.papers.recipe import Measure
from fedssl.papers.results import Judged, Results, mean_and_spread
from fedssl.papers.verdict import RULE
from fedssl.report.console import duration

NOTHING = "–"


def markdown(results: Results, picture: str = "") -> str:
    """The whole page: what it is, the table, the orderings, and the settings to run it again."""
    recipe = results.recipe
    parts = [
        f"# {heading(results)}",
        recipe.paper,
        f"Scale `{results.scale}`, {results.seeds} seed{'s' * (results.seeds > 1)}: "
        f"mean ± standard deviation (seeds). {_unit(results)} {_images(results)}",
        f"    {command(results)}",
        table(results),
        f"![{recipe.title}]({picture})" if picture else "",
        orderings(results),
        _failures(results),
        f"## Notes\n\n{recipe.notes.strip()}" if recipe.notes else "",
        _settings(results),
        _cost(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def heading(results: Results) -> str:
    recipe = results.recipe
    return f"{recipe.source}: {recipe.title}" if recipe.source else recipe.title


def command(results: Results) -> str:
    words = [f"{key}={value}" for key, value in _overrides(results).items()]
    name = results.recipe.name
    return " ".join(
        ["fedssl reproduce", name, f"--scale {results.scale}", f"--seeds {results.seeds}", *words]
    )


def table(results: Results) -> str:
    """Ours and the paper's side by side for each column; last, the encoder before training."""
    head = [""]
    for column in results.columns:
        head += [column, "paper"]
    body = []
    for row in results.rows:
        line = [row]
        for column in results.columns:
            line += [ours(results, row, column), papers(results, row, column)]
        body.append(line)
    untrained = [_untrained(results, column) for column in results.columns]
    if any(untrained):
        body.append(
            ["untrained encoder"] + [cell for number in untrained for cell in (number or NOTHING, NOTHING)]
        )
    return grid(head, body)


def ours(results: Results, row: str, column: str) -> str:
    outcomes, numbers = results.at(row, column), results.numbers(row, column)
    if numbers:
        return summary(list(numbers.values()), results.measure(row, column))
    return "failed" if outcomes else NOTHING


def papers(results: Results, row: str, column: str) -> str:
    known = results.recipe.row(row).paper.get(column)
    if not known:
        return NOTHING
    texts = [shown(number, results.measure(row, column)) for number in known]
    return " ± ".join(texts)


def summary(numbers: Sequence[float], measure: Measure) -> str:
    """83.34 ± 0.39 (3)."""
    never = sum(math.isinf(number) for number in numbers)
    if never:
        return "not reached" + (f" in {never} of {len(numbers)}" if never < len(numbers) else f" ({never})")
    mean, spread = mean_and_spread(numbers)
    digits = measure.digits
    around = "" if spread is None else f" ± {spread:.{digits}f}"
    return f"{mean:.{digits}f}{around} ({len(numbers)})"


def orderings(results: Results) -> str:
    """Every claim with its verdict."""
    judged = results.orderings()
    if not judged:
        return ""
    head = ["claim", "where", "better by", "paper", "p", "verdict"]
    body = [
        [
            f"{each.comparison.claim}: {each.comparison.text}"
            if each.comparison.claim
            else each.comparison.text,
            each.comparison.where,
            _difference(each),
            NOTHING if each.paper is None or not math.isfinite(each.paper) else f"{each.paper:+.2f}",
            NOTHING if each.verdict.p is None else f"{each.verdict.p:.3f}",
            f"**{each.verdict.word}**",
        ]
        for each in judged
    ]
    return "## Orderings\n\n" + grid(head, body) + f"\n\n{RULE[0].upper()}{RULE[1:]}"


def as_json(results: Results) -> dict[str, Any]:
    """The raw numbers; what is infinite (never reached) is null."""
    return {
        "recipe": results.recipe.name,
        "title": heading(results),
        "scale": results.scale,
        "seeds": results.seeds,
        "overrides": _overrides(results),
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
        "paper": {
            row.name: {column: list(known) for column, known in row.paper.items()}
            for row in results.recipe.rows
        },
        "orderings": [
            {
                "claim": each.comparison.claim,
                "ordering": each.comparison.text,
                "where": each.comparison.where,
                "difference": _finite(each.verdict.mean),
                "spread": each.verdict.spread,
                "p": each.verdict.p,
                "paper": _finite(each.paper),
                "verdict": each.verdict.word,
            }
            for each in results.orderings()
        ],
    }


# --- pieces ---------------------------------------------------------------------------------------


def _overrides(results: Results) -> dict[str, Any]:
    """As they were given; but where the images lie is a matter of this machine."""
    return {key: "FOLDER" if key == "data.root" else value for key, value in results.overrides.items()}


def _unit(results: Results) -> str:
    kinds = {results.measure(row, column).kind for row in results.rows for column in results.columns}
    names = {
        "linear": "accuracy of the linear probe, %",
        "knn": "accuracy of the nearest-neighbour probe, %",
        "classifier": "accuracy of the classifier that was trained with the encoder, %",
        "semi": "accuracy after fine-tuning on few labels, %",
        "transfer": "accuracy of the linear probe on the images that the column names, %",
        "generalization": "accuracy of a linear probe for each style on the global encoder, %",
        "personal": "accuracy of each client's own encoder on its own style, %",
        "style": "share of style features whose nearest neighbour is of the same client, %",
        "detection": "average precision of boxes after fine-tuning a detector, %",
        "segmentation": "average precision of masks after fine-tuning a detector, %",
        "rounds-to": "rounds until the kNN monitor reaches the row's target",
        "epochs-to": "local epochs until the kNN monitor reaches the row's target",
        "oscillation": "oscillation of the clients' mean angle δ over rounds, ×1,000 (less is smoother)",
        "drift": "d_w(received, local) in the last round, mean over clients (less is closer)",
        "generate": "what `fedssl generate` finds: shares in %, distances and errors as they are",
    }
    text = "; ".join(words for kind, words in names.items() if kind in kinds)
    return f"{text[0].upper()}{text[1:]}."


def _images(results: Results) -> str:
    """Whose images these are: below the paper's scale, columns keep the names that the paper gives them."""
    found = {}
    for outcome in results.outcomes:
        data = outcome.cell.config.data
        name = Path(data.root).name if data.name == "npz" else data.name
        found[name if not data.limit else f"{data.limit:,} of {name}"] = True
    return f"Images: {', '.join(found)}." if found else ""


def _untrained(results: Results, column: str) -> str:
    """One number if all rows begin from the same encoders, else the range."""
    rows = [numbers for row in results.rows if (numbers := results.untrained(row, column))]
    if not rows:
        return ""
    everything = [number for numbers in rows for number in numbers.values()]
    # Two processes may share the work, so that no row need have all seeds yet.
    of_seed = {seed: number for numbers in rows for seed, number in numbers.items()}
    if all(abs(number - of_seed[seed]) < 1e-9 for numbers in rows for seed, number in numbers.items()):
        return summary(list(of_seed.values()), Measure())
    return f"{min(everything):.2f} … {max(everything):.2f}"


def _difference(judged: Judged) -> str:
    verdict = judged.verdict
    if verdict.mean is None:
        return NOTHING
    if not math.isfinite(verdict.mean):
        return "only one side reached it"
    around = "" if verdict.spread is None else f" ± {verdict.spread:.2f}"
    return f"{verdict.mean:+.2f}{around}"


def _failures(results: Results) -> str:
    if not results.failures:
        return ""
    lines = [
        f"- {outcome.cell.name}: {outcome.error} (runs/{outcome.path.name})" for outcome in results.failures
    ]
    return "## Failed\n\n" + "\n".join(lines)


def _settings(results: Results) -> str:
    """What the recipe sets for all cells alike, then what each row adds; all else has the defaults."""
    recipe, scale = results.recipe, results.scale
    cells = [
        dict(flatten(values_of(recipe, scale, row, column)))
        for row in recipe.rows_at(scale)
        for column in recipe.columns_at(scale)
    ]
    common = {key: value for key, value in cells[0].items() if all(cell.get(key) == value for cell in cells)}
    common |= {key: value for key, value in results.overrides.items() if key != "data.root"}
    text = "\n".join(f"    {key} = {_toml(value)}" for key, value in sorted(common.items()))
    apart = []
    for kind, parts in (("row", recipe.rows_at(scale)), ("column", recipe.columns_at(scale))):
        for part in parts:
            layers = overlay(overlay({}, part.config), part.scale.get(scale, {}))
            own = {key: value for key, value in flatten(layers) if common.get(key) != value}
            if own:
                apart.append(
                    f"- {kind} {part.name}: " + ", ".join(f"`{key} = {_toml(own[key])}`" for key in own)
                )
    return "\n\n".join(["## Settings", text, *(["\n".join(apart)] if apart else [])])


def _cost(results: Results) -> str:
    seconds = {outcome.path: outcome.seconds for outcome in results.outcomes if not outcome.error}
    return f"{len(seconds)} runs, {duration(sum(seconds.values()))} of training." if seconds else ""


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def grid(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up, so that it reads as plain text too."""
    lines = [[cell.replace("|", "\\|") for cell in line] for line in [head, *body]]
    widths = [max(3, *(len(line[place]) for line in lines)) for place in range(len(head))]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    texts = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    return "\n".join([texts[0], rule, *texts[1:]])
