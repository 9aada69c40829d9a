"""The numbers of a table and the verdicts on its orderings, as Markdown tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fedssl.statistics import RULE, Verdict, mean_and_spread, summarize
from fedssl.tables.measure import format_number
from fedssl.tables.results import Results, TestedOrdering
from fedssl.tables.store import Number
from fedssl.tables.table import Measure

NOTHING = "–"
PUBLISHED = "†"  # marks numbers known only as a mean over seeds
BOUNDED = "‡"  # marks differences with unknown spread


def table(results: Results) -> str:
    """Format our numbers next to the paper's (if any) for each column, and the untrained encoder last."""
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
    starts = [untrained(results, column) for column in results.columns]
    if any(starts):
        body.append(
            ["untrained encoder"]
            + [cell for number in starts for cell in (number or NOTHING, *[NOTHING] * published)]
        )
    return grid(head, body)


def ours(results: Results, row: str, column: str) -> str:
    """Format `37.30 ± 0.30 (3)`, or the reason why there is no number."""
    numbers, measure = results.numbers(row, column), results.measure(row, column)
    if numbers:
        return summary(list(numbers.values()), measure)
    if (row, column) in results.means:
        return published(results.means[row, column], measure)
    if results.at(row, column):
        return "failed"
    return "stale" if any(cell.column == column for cell in results.stale_of(row)) else NOTHING


def papers(results: Results, row: str, column: str) -> str:
    known = results.table.row(row).paper.get(column)
    if not known:
        return NOTHING
    texts = [format_number(number, results.measure(row, column)) for number in known]
    return " ± ".join(texts)


def summary(numbers: Sequence[float], measure: Measure) -> str:
    """Format as `83.34 ± 0.39 (3)`."""
    never = sum(math.isinf(number) for number in numbers)
    if never:
        return "not reached" + (f" in {never} of {len(numbers)}" if never < len(numbers) else f" ({never})")
    mean, spread = mean_and_spread(numbers)
    digits = measure.digits
    around = "" if spread is None else f" ± {spread:.{digits}f}"
    return f"{mean:.{digits}f}{around} ({len(numbers)})"


def published(number: Number, measure: Measure) -> str:
    """Format as `37.30 ± 0.30 (3)†`."""
    around = "" if number.spread is None else f" ± {number.spread:.{measure.digits}f}"
    return f"{number.number:.{measure.digits}f}{around} ({number.n}){PUBLISHED}"


def untrained(results: Results, column: str) -> str:
    """Format the accuracy before training: one number if all rows start alike, else the range."""
    rows = [numbers for row in results.rows if (numbers := results.untrained(row, column))]
    if not rows:
        return _untrained_mean(results, column)
    everything = [number for numbers in rows for number in numbers.values()]
    # Two processes may share the work, so rows may not have all seeds yet.
    of_seed = {seed: number for numbers in rows for seed, number in numbers.items()}
    if all(abs(number - of_seed[seed]) < 1e-9 for numbers in rows for seed, number in numbers.items()):
        return summary(list(of_seed.values()), Measure())
    return f"{min(everything):.2f} … {max(everything):.2f}"


def _untrained_mean(results: Results, column: str) -> str:
    """Return the published mean that all rows share, if any."""
    found = {
        published(Number(number=mean.untrained, spread=mean.untrained_spread, n=mean.n), Measure())
        for (_, place), mean in results.means.items()
        if place == column and mean.untrained is not None
    }
    return found.pop() if len(found) == 1 else ""


def orderings(results: Results) -> str:
    """Format every claim with its verdict, after a line with the counts."""
    judged = results.orderings()
    if not judged:
        return ""
    return "\n\n".join(["## Orderings", f"**{results.summary()}.**", verdicts(judged, results.seeds), RULE])


def verdicts(judged: Sequence[TestedOrdering], seeds: int) -> str:
    """Format one line per claim, followed by lines for its parts."""
    lines = [line for each in judged for line in ((each, False), *((part, True) for part in each.parts))]
    permuted = any(each.verdict.p_permutation is not None for each, _ in lines)
    head = ["claim", "where", "better by", "interval", "paper", "p", "p (Holm)"]
    head += [*(["p (sign flips)"] if permuted else []), "n", "verdict"]
    return grid(head, [_ordering(each, part, permuted, seeds) for each, part in lines])


def _ordering(judged: TestedOrdering, part: bool, permuted: bool, seeds: int) -> list[str]:
    """Format a line of the table; parts of an `at least k of n` are indented, with a verdict not in bold."""
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
        interval(verdict),
        NOTHING if judged.paper is None or not math.isfinite(judged.paper) else f"{judged.paper:+.2f}",
        _p(verdict.p),
        _p(verdict.p_corrected),
        *([_p(verdict.p_permutation)] if permuted else []),
        _n(judged, seeds),
        "; ".join([word, *(note for note in notes if note)]),
    ]


def interval(verdict: Verdict) -> str:
    """`[+0.21, +1.70]`."""
    return NOTHING if verdict.low is None else f"[{verdict.low:+.2f}, {verdict.high:+.2f}]"


def _p(value: float | None) -> str:
    return NOTHING if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def _n(judged: TestedOrdering, seeds: int) -> str:
    """`3`, or `2 of 6: seed 1 failed (BYOL · iid), seeds 3, 4, 5 not run`."""
    verdict = judged.verdict
    if judged.published:
        return f"{verdict.n}{BOUNDED if judged.bounded else PUBLISHED}"
    count = str(verdict.n) if verdict.n == seeds else f"{verdict.n} of {seeds}"
    why = []
    for name in verdict.failed:
        cell, seed = name.rsplit(" · ", 1)
        why.append(f"{seed} failed ({cell})")
    for reason, missing in judged.missing.items():
        why.append(f"seed{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} {reason}")
    return f"{count}: {', '.join(why)}" if why else count


def _difference(judged: TestedOrdering) -> str:
    verdict = judged.verdict
    if judged.parts:
        return summarize([part.verdict for part in judged.parts])
    if verdict.mean is None:
        return NOTHING
    if not math.isfinite(verdict.mean):
        return "only one side reached it"
    most = "at most " * judged.bounded
    around = "" if verdict.spread is None else f" ± {most}{verdict.spread:.2f}"
    return f"{verdict.mean:+.2f}{around}"


def grid(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Format a Markdown table with aligned columns, so that it is readable as plain text."""
    lines = [[cell.replace("|", "\\|") for cell in line] for line in [head, *body]]
    widths = [max(3, *(len(line[place]) for line in lines)) for place in range(len(head))]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    texts = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    return "\n".join([texts[0], rule, *texts[1:]])
