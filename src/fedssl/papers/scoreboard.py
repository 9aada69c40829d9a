"""The scoreboard: every ordering of the five papers at the largest scale that has been measured."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from fedssl.papers.recipe import Recipe, Scale
from fedssl.papers.stored import Stored, recipes_of
from fedssl.statistics import RULE, Word
from fedssl.tables.markdown import BOUNDED, NOTHING, PUBLISHED, grid, interval
from fedssl.tables.results import Results, TestedOrdering
from fedssl.tables.store import Difference
from fedssl.tables.table import Ordering

# Recipe prefix: the paper, and its page of results.
PAPERS = {
    "fedema": ("FedSSL and FedEMA", "fedema.md"),
    "ldawa": ("L-DAWA", "l-dawa.md"),
    "decssl": ("Dec-SSL and FeatARC", "dec-ssl.md"),
    "fedstyle": ("FedStyle", "fedstyle.md"),
    "padpaf": ("PaDPaF", "padpaf.md"),
}
HEAD = ["ordering", "where", "table", "paper", "ours", "scale", "n", "verdict"]


@dataclass(frozen=True)
class Line:
    """A line of the scoreboard.

    Attributes:
        recipe: the recipe that the ordering is from.
        claim: the ordering in words.
        own: whether the ordering is in the paper; follow-ups are ours.
        comparisons: number of comparisons in the line: more than one if they are not measured.
        paper: the paper's differences; None if unknown.
        scale: the scale of the measurement; empty: not measured.
        judged: the verdict at that scale.
        was: a published difference that is out of date.
    """

    recipe: Recipe
    claim: str
    own: bool
    comparisons: int
    paper: tuple[float | None, ...]
    scale: str = ""
    judged: TestedOrdering | None = None
    was: Difference | None = None


# --- lines ----------------------------------------------------------------------------------------


def lines(stored: Stored, paper: str) -> list[Line]:
    """Return every ordering of a paper's recipes."""
    return [
        line
        for recipe in recipes_of(tuple(PAPERS))[paper]
        for ordering in recipe.orderings
        for line in _lines(stored, recipe, ordering)
    ]


def _lines(stored: Stored, recipe: Recipe, ordering: Ordering) -> Iterator[Line]:
    """Return a line per comparison that has been measured, now or before, and one for all others together."""
    own = not ("not in the paper" in recipe.source + ordering.claim or recipe.source.startswith("follow-up"))
    found: dict[tuple[str, str], Line] = {}
    for scale in stored.scales(recipe):
        for judged in _judged(stored, recipe, scale, ordering):
            key = ("", "") if ordering.at_least else (judged.text, judged.where)
            known = found.get(key)
            if known is None or _tested(judged) > _tested(known.judged):
                found[key] = Line(recipe, ordering.claim, own, 1, (judged.paper,), scale, judged)
    for scale in stored.scales(recipe):
        for judged, was in _outdated(stored, recipe, scale, ordering):
            line = Line(recipe, ordering.claim, own, 1, (judged.paper,), scale, judged, was)
            found.setdefault((judged.text, judged.where), line)
    yield from found.values()
    left = _unmeasured(recipe, ordering, found.keys())
    if left:
        yield Line(recipe, ordering.claim, own, len(left), tuple(left[key] for key in left))


def _judged(stored: Stored, recipe: Recipe, scale: Scale, ordering: Ordering) -> Iterator[TestedOrdering]:
    """Return the measurements of an ordering at a scale."""
    for each, judged in stored.table(recipe.name, scale).by_ordering():
        if each == ordering:
            yield from (line for line in judged if line.verdict.n)


def _outdated(
    stored: Stored, recipe: Recipe, scale: Scale, ordering: Ordering
) -> Iterator[tuple[TestedOrdering, Difference]]:
    """Return the published differences of an ordering that are out of date."""
    results = stored.table(recipe.name, scale)
    for each, judged in results.by_ordering():
        for line in judged if each == ordering else ():
            was = results.differences.get((line.text, line.where))
            if was is not None and not line.verdict.n:
                yield line, was


def _tested(judged: TestedOrdering | None) -> bool:
    """Whether there is more than one seed."""
    return judged is not None and judged.verdict.n > 1


def _unmeasured(
    recipe: Recipe, ordering: Ordering, measured: Collection[tuple[str, str]]
) -> dict[tuple[str, str], float | None]:
    """Return the unmeasured comparisons of an ordering at any scale, with the paper's difference."""
    found: dict[tuple[str, str], float | None] = {}
    for scale in reversed(recipe.scales):
        if scale == "smoke":  # scale smoke only shows that everything runs
            continue
        for each, judged in Results(recipe.at(scale), 1, {}, []).by_ordering():
            if each == ordering:
                for line in judged:
                    key = ("", "") if ordering.at_least else (line.text, line.where)
                    found.setdefault(key, line.paper)
    return {key: paper for key, paper in found.items() if key not in measured}


# --- text -----------------------------------------------------------------------------------------


def summary(stored: Stored) -> str:
    """Summarize all papers in one line."""
    return _count([line for paper in PAPERS for line in lines(stored, paper)], "the five papers'")


def scoreboard(stored: Stored, shown: Collection[tuple[str, str]] = ()) -> str:
    """Return a section for each paper, with the paper's own orderings before our follow-ups.

    Args:
        stored: the results.
        shown: names and scales of the tables on the papers' pages, which are linked.
    """
    parts = [f"**{summary(stored)}**"]
    for paper, (title, page) in PAPERS.items():
        found = lines(stored, paper)
        parts += [
            f"## {title}",
            _count(found, "the paper's"),
            _grid([x for x in found if x.own], page, shown),
        ]
        ours = [line for line in found if not line.own]
        if ours:
            parts += ["Not in the paper:", _grid(ours, page, shown)]
    return "\n\n".join([*parts, "## How verdicts are reached", RULE, MARKS])


MARKS = (
    f"{PUBLISHED}: only mean and standard deviation over the seeds are known, of the differences too. "
    f"{BOUNDED}: of the differences only the mean is known; their standard deviation is taken to be as large "
    "as it can be, the sum of those of both sides."
)


def _count(found: Sequence[Line], whose: str) -> str:
    """`54 of the paper's 130 comparisons are measured: 9 held, 2 not held, 43 undecided.`"""
    own = [line for line in found if line.own]
    words = [line.judged.verdict.word for line in own if line.judged is not None and line.was is None]
    old = sum(line.was is not None for line in own)
    order: tuple[Word, ...] = ("held", "not held", "undecided")
    counts = ", ".join(f"{words.count(word)} {word}" for word in order)
    total = sum(line.comparisons for line in own)
    more = f"; {old} more are out of date" * bool(old)
    return f"{len(words)} of {whose} {total} comparisons are measured: {counts}{more}."


def _grid(found: Sequence[Line], page: str, shown: Collection[tuple[str, str]]) -> str:
    return grid(HEAD, [_row(line, page, shown) for line in found])


def _row(line: Line, page: str, shown: Collection[tuple[str, str]]) -> list[str]:
    source = line.recipe.source.partition(", ")[2] or line.recipe.source
    if line.judged is None:
        many = f"{line.comparisons} comparisons" if line.comparisons > 1 else "1 comparison"
        table = f"{source} (`{line.recipe.name}`)"
        return [line.claim, many, table, _range(line.paper), NOTHING, NOTHING, NOTHING, "not measured"]
    judged, verdict = line.judged, line.judged.verdict
    ours = NOTHING if verdict.mean is None else f"{verdict.mean:+.2f} {interval(verdict)}"
    mark, n, word = (
        BOUNDED if judged.bounded else PUBLISHED * judged.published,
        verdict.n,
        f"**{verdict.word}**",
    )
    if line.was is not None:
        ours = f"was {line.was.mean:+.2f} ± {line.was.spread:.2f}"
        mark, n, word = PUBLISHED, line.was.n, "out of date"
    is_there = (line.recipe.name, line.scale) in shown
    place = f"#{anchor(line.recipe.name, line.scale)}" if is_there else ""
    against = "; the paper's own numbers contradict this" if judged.contradicted else ""
    return [
        f"{line.claim}: {judged.text}" if line.claim else judged.text,
        judged.where,
        f"[{source}]({page}{place})",
        _range(line.paper),
        ours.removesuffix(f" {NOTHING}"),
        line.scale,
        f"{n}{mark}",
        f"{word}{against}",
    ]


def anchor(name: str, scale: str) -> str:
    """Return the anchor of the heading above a generated table (see `fedssl.papers.pages`)."""
    return f"{name}-at-scale-{scale}"


def _range(differences: Sequence[float | None]) -> str:
    """`+0.30`, or `−1.20 … +8.80` of several."""
    known = sorted(each for each in differences if each is not None and math.isfinite(each))
    if not known:
        return NOTHING
    ends = dict.fromkeys((f"{known[0]:+.2f}", f"{known[-1]:+.2f}"))
    return " … ".join(ends)
