"""Numbers beside the paper's, as Markdown and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedssl.config import flatten
from fedssl.report.console import duration
from fedssl.statistics import RULE, Verdict, mean_and_spread, summarize
from fedssl.tables.cells import overlay, values_of
from fedssl.tables.measure import shown
from fedssl.tables.results import Judged, Results
from fedssl.tables.table import Measure

NOTHING = "–"


def markdown(results: Results, picture: str = "") -> str:
    """The whole page: what it is, the table, the orderings, and the settings to run it again."""
    about = results.table
    parts = [
        f"# {heading(results)}",
        about.paper,
        f"{_size(results)}: mean ± standard deviation (seeds). {_unit(results)} {_images(results)}",
        _selected(results),
        f"    {command(results)}",
        table(results),
        f"![{about.title}]({picture})" if picture else "",
        orderings(results),
        _failures(results),
        f"## Notes\n\n{about.notes.strip()}" if about.notes else "",
        _settings(results),
        _cost(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def heading(results: Results) -> str:
    source, title = results.table.source, results.table.title
    title = f"{source}: {title}" if source else title
    return f"{title} (tuning)" if results.tuning else title


def command(results: Results) -> str:
    words = [results.table.command, f"--seeds {results.seeds}"]
    if results.first_seed:
        words.append(f"--first-seed {results.first_seed}")
    words += [f'--{key} "{names}"' for key, names in (results.selection or {}).items()]
    return " ".join([*words, *(f"{key}={value}" for key, value in _overrides(results).items())])


def table(results: Results) -> str:
    """Ours, beside the paper's where there are any, for each column; last, the encoder before training."""
    published = any(row.paper for row in results.table.rows)
    head = [""]
    for column in results.columns:
        head += [column, *["paper"] * published]
    body = []
    for row in results.rows:
        line = [row]
        for column in results.columns:
            line += [ours(results, row, column), *[papers(results, row, column)] * published]
        body.append(line)
    untrained = [_untrained(results, column) for column in results.columns]
    if any(untrained):
        body.append(
            ["untrained encoder"]
            + [cell for number in untrained for cell in (number or NOTHING, *[NOTHING] * published)]
        )
    return grid(head, body)


def ours(results: Results, row: str, column: str) -> str:
    outcomes, numbers = results.at(row, column), results.numbers(row, column)
    if numbers:
        return summary(list(numbers.values()), results.measure(row, column))
    return "failed" if outcomes else NOTHING


def papers(results: Results, row: str, column: str) -> str:
    known = results.table.row(row).paper.get(column)
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
    """Every claim with its verdict, after one line that counts them."""
    judged = results.orderings()
    if not judged:
        return ""
    lines = [line for each in judged for line in ((each, False), *((part, True) for part in each.parts))]
    permuted = any(each.verdict.p_permutation is not None for each, _ in lines)
    head = ["claim", "where", "better by", "interval", "paper", "p", "p (Holm)"]
    head += [*(["p (sign flips)"] if permuted else []), "n", "verdict"]
    body = [_ordering(each, part, permuted, results.seeds) for each, part in lines]
    return "\n\n".join(["## Orderings", f"**{results.summary()}.**", grid(head, body), RULE])


def _ordering(judged: Judged, part: bool, permuted: bool, seeds: int) -> list[str]:
    """A line of the table; parts of an `at least k of n` are indented and their verdict is not bold."""
    verdict = judged.verdict
    named = f"{judged.claim}: {judged.text}" if judged.claim and not part else judged.text
    word = verdict.word if part else f"**{verdict.word}**"
    notes = [
        f"could have shown {verdict.detectable:.2f}"
        if verdict.word == "undecided" and verdict.detectable is not None
        else "",
        "the paper's own numbers contradict this" if judged.contradicted else "",
    ]
    return [
        f"– {named}" if part else named,
        judged.where,
        _difference(judged),
        NOTHING if verdict.low is None else f"[{verdict.low:+.2f}, {verdict.high:+.2f}]",
        NOTHING if judged.paper is None or not math.isfinite(judged.paper) else f"{judged.paper:+.2f}",
        _p(verdict.p),
        _p(verdict.p_corrected),
        *([_p(verdict.p_permutation)] if permuted else []),
        _n(verdict, seeds),
        "; ".join([word, *(note for note in notes if note)]),
    ]


def _p(value: float | None) -> str:
    return NOTHING if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _n(verdict: Verdict, seeds: int) -> str:
    """`3`, `2 of 3`, or `2 of 3: seed 1 failed (BYOL · iid)`."""
    count = str(verdict.n) if verdict.n == seeds else f"{verdict.n} of {seeds}"
    failed = []
    for name in verdict.failed:
        cell, seed = name.rsplit(" · ", 1)
        failed.append(f"{seed} failed ({cell})")
    return f"{count}: {', '.join(failed)}" if failed else count


def as_json(results: Results) -> dict[str, Any]:
    """The raw numbers; what is infinite (never reached) is null."""
    return {
        "recipe": results.table.name,
        "title": heading(results),
        "scale": results.table.scale,
        "seeds": results.seeds,
        "first_seed": results.first_seed,
        "tuning": results.tuning,
        "selection": dict(results.selection or {}),
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
            for row in results.table.rows
        },
        "orderings": [_ordering_json(each) for each in results.orderings()],
        "summary": results.summary(),
    }


def _ordering_json(judged: Judged) -> dict[str, Any]:
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
        "failed": list(verdict.failed),
        "detectable": verdict.detectable,
        "paper": _finite(judged.paper),
        "contradicted_by_paper": judged.contradicted,
        "verdict": verdict.word,
    }
    return found | ({"parts": [_ordering_json(part) for part in judged.parts]} if judged.parts else {})


# --- pieces ---------------------------------------------------------------------------------------


def _overrides(results: Results) -> dict[str, Any]:
    """As they were given; but where the images lie is a matter of this machine."""
    return {key: "FOLDER" if key == "data.root" else value for key, value in results.overrides.items()}


def _size(results: Results) -> str:
    """`Scale `mini`, 3 seeds`."""
    seeds, scale = _seeds(results), results.table.scale
    return f"Scale `{scale}`, {seeds}" if scale else f"{seeds[0].upper()}{seeds[1:]}"


def _seeds(results: Results) -> str:
    """`3 seeds`, `seeds 6 to 8`, `tuning seeds 1000 to 1002`."""
    first, count = results.first_seed, results.seeds
    if not first:
        return f"{count} seed{'s' * (count > 1)}"
    numbers = f"seed {first}" if count == 1 else f"seeds {first} to {first + count - 1}"
    return f"tuning {numbers}" if results.tuning else numbers


def _selected(results: Results) -> str:
    if not results.selection:
        return ""
    return f"A part of the table: {' and '.join(results.selection)} were selected."


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
        "local": "accuracy of each client's model on its own class mix of the test split, %",
        "style": "share of style features whose nearest neighbour is of the same client, %",
        "detection": "average precision of boxes after fine-tuning a detector, %",
        "segmentation": "average precision of masks after fine-tuning a detector, %",
        "rounds-to": "rounds until the kNN monitor reaches the row's target",
        "epochs-to": "local epochs until the kNN monitor reaches the row's target",
        "oscillation": "oscillation of the clients' mean angle δ over rounds, ×1,000 (less is smoother)",
        "drift": "d_w(received, local) in the last round, mean over clients (less is closer)",
        "drift-from-mean": "d_w(mean of the local models, local) in the last round, mean over clients "
        "(less is closer)",
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
    if judged.parts:
        return summarize([part.verdict for part in judged.parts])
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
    """What the table sets for all cells alike, then what each row adds; all else has the defaults."""
    about = results.table
    cells = [dict(flatten(values_of(about, row, column))) for row in about.rows for column in about.columns]
    common = {key: value for key, value in cells[0].items() if all(cell.get(key) == value for cell in cells)}
    common |= {key: value for key, value in results.overrides.items() if key != "data.root"}
    text = "\n".join(f"    {key} = {_toml(value)}" for key, value in sorted(common.items()))
    apart = []
    for kind, parts in (("row", about.rows), ("column", about.columns)):
        for part in parts:
            layer = overlay({}, part.config)
            own = {key: value for key, value in flatten(layer) if common.get(key) != value}
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
