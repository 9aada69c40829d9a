"""The numbers of a table by row, column and seed, and the verdicts on the paper's orderings."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedssl.statistics import Claim, Summary, Verdict, at_least, check_claims, paired_contrast, summarize
from fedssl.tables.cells import TUNING_SEEDS, Cell
from fedssl.tables.orderings import Comparison, Group, Place, groups
from fedssl.tables.runner import Outcome
from fedssl.tables.store import Difference, Number, Stale
from fedssl.tables.table import Measure, Ordering, Table


@dataclass(frozen=True)
class TestedOrdering:
    """A row of the table of orderings: a claim, the paper's difference, and the verdict.

    Attributes:
        text, claim, where: the comparison, the paper's words, and the row or column.
        paper: the paper's own difference (or slope), if known.
        contradicted: whether the paper's own numbers contradict its claim.
        verdict: the result of the test over seeds.
        parts: the comparisons counted by `at_least`; they are not claims by themselves.
        missing: missing seeds by reason: "not run" or "stale".
        published: whether only means over seeds are known.
        bounded: whether only an upper bound of the differences' spread is known.
    """

    text: str
    claim: str
    where: str
    paper: float | None
    contradicted: bool
    verdict: Verdict
    parts: tuple[TestedOrdering, ...] = ()
    missing: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    published: bool = False
    bounded: bool = False


@dataclass(frozen=True)
class Results:
    """The outcomes of a table.

    Attributes:
        table: the table.
        seeds, first_seed: number of seeds, and the first one.
        overrides: config keys for all cells.
        outcomes: the available outcomes, by seed.
        selection: --rows and --columns as given.
        planned: all cells, with or without an outcome.
        stale: stored results that are out of date, by cell name.
        means: published means over seeds by row and column, where single seeds are not known.
        differences: published differences of the orderings by text and place.
    """

    table: Table
    seeds: int
    overrides: Mapping[str, Any]
    outcomes: Sequence[Outcome]
    first_seed: int = 0
    selection: Mapping[str, str] | None = None
    planned: Sequence[Cell] = ()
    stale: Mapping[str, Stale] = field(default_factory=dict)
    means: Mapping[tuple[str, str], Number] = field(default_factory=dict)
    differences: Mapping[tuple[str, str], Difference] = field(default_factory=dict)

    @property
    def tuning(self) -> bool:
        """Whether the seeds are tuning seeds, which are never used for results."""
        return self.first_seed >= TUNING_SEEDS

    @property
    def file_name(self) -> str:
        """File name without suffix. Tuning runs and parts of a table do not overwrite the table."""
        words = [self.table.name, *[self.table.scale] * bool(self.table.scale)]
        return "-".join([*words, *["part"] * bool(self.selection), *["tuning"] * self.tuning])

    @property
    def rows(self) -> list[str]:
        return [row.name for row in self.table.rows]

    @property
    def columns(self) -> list[str]:
        return [column.name for column in self.table.columns]

    @property
    def failures(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.error]

    def at(self, row: str, column: str) -> list[Outcome]:
        """Return the outcomes of a cell by seed."""
        return [
            outcome for outcome in self.outcomes if (outcome.cell.row, outcome.cell.column) == (row, column)
        ]

    def numbers(self, row: str, column: str) -> dict[int, float]:
        return {o.cell.seed: o.number for o in self.at(row, column) if o.number is not None}

    def known(self, row: str, column: str) -> Sequence[float] | Summary | None:
        """Return the numbers of a cell, or their published mean."""
        mean = self._mean(row, column)
        return list(self.numbers(row, column).values()) or mean

    def untrained(self, row: str, column: str) -> dict[int, float]:
        return {o.cell.seed: o.untrained for o in self.at(row, column) if o.untrained is not None}

    def stale_of(self, row: str) -> list[Cell]:
        """Return the cells of a row for which the store only has out-of-date results."""
        return [cell for cell in self.planned if cell.row == row and cell.name in self.stale]

    def measure(self, row: str, column: str) -> Measure:
        return self.table.measure_of(self.table.row(row), self.table.column(column))

    # --- orderings --------------------------------------------------------------------------------

    def orderings(self) -> list[TestedOrdering]:
        """Return every claim with its verdict; Holm's correction covers all comparisons of the table."""
        return [each for _, judged in self.by_ordering() for each in judged]

    def by_ordering(self) -> list[tuple[Ordering, tuple[TestedOrdering, ...]]]:
        """Return every claim with its verdict and ordering."""
        found = groups(self.table)
        every = [comparison for group in found for comparison in group.comparisons]
        verdicts = iter(check_claims([self._claim(comparison) for comparison in every]))
        judged: list[tuple[Ordering, tuple[TestedOrdering, ...]]] = []
        for group in found:
            parts = tuple(self._judged(comparison, next(verdicts)) for comparison in group.comparisons)
            judged.append((group.ordering, (_at_least(group, parts),) if group.ordering.at_least else parts))
        return judged

    def summary(self) -> str:
        """`7 of 11 held, 1 not held, 3 undecided`."""
        return summarize([each.verdict for each in self.orderings()])

    def _judged(self, comparison: Comparison, verdict: Verdict) -> TestedOrdering:
        known = [(weight, self._paper(place)) for weight, place in comparison.terms]
        paper = None
        if all(number is not None for _, number in known):
            paper = paired_contrast([(weight, {0: number or 0.0}) for weight, number in known])[0]
        return TestedOrdering(
            text=comparison.text,
            claim=comparison.claim,
            where=comparison.where,
            paper=paper,
            contradicted=paper is not None and paper <= comparison.margin + 1e-9,
            verdict=verdict,
            missing=self._missing(comparison),
            published=self._published(comparison) is not None,
            bounded=self._published(comparison) is not None and self._difference(comparison) is None,
        )

    def _claim(self, comparison: Comparison) -> Claim:
        published = self._published(comparison)
        if published is not None:
            return Claim(published, comparison.margin)
        terms = [(weight, self._seeds(place)) for weight, place in comparison.terms]
        failed = (name for _, place in comparison.terms for name in self._failed(place))
        return Claim(
            list(paired_contrast(terms).values()), comparison.margin, failed=tuple(dict.fromkeys(failed))
        )

    def _seeds(self, place: Place) -> dict[int, float]:
        if place.number is not None:
            return dict.fromkeys(range(self.first_seed, self.first_seed + self.seeds), place.number)
        found = _valid((self.untrained if place.untrained else self.numbers)(place.row, place.column))
        if not place.over:
            return found
        return paired_contrast([(1.0, found), (-1.0, _valid(self.numbers(place.over, place.column)))])

    def _failed(self, place: Place) -> Iterator[str]:
        """List the runs that failed or whose number is NaN."""
        for row in (place.row, place.over):
            for outcome in self.at(row, place.column):
                if outcome.error or (outcome.number is not None and math.isnan(outcome.number)):
                    yield outcome.cell.name

    def _published(self, comparison: Comparison) -> Summary | None:
        """Return the published numbers if single seeds are unknown and the means of all sides are valid.

        Where the differences were not published, their mean is that of the means. Their standard deviation is
        at most the sum of those of the sides: it is a norm of the centered numbers.
        """
        known = [(weight, self._side(place)) for weight, place in comparison.terms]
        sides = [(weight, side) for weight, side in known if side is not None]
        counts = {side.n for _, side in sides if side.n}
        if len(sides) < len(known) or len(counts) != 1:
            return None
        difference = self._difference(comparison)
        if difference is not None:
            return Summary(difference.mean, difference.spread, difference.n)
        mean = math.fsum(weight * side.mean for weight, side in sides)
        return Summary(mean, math.fsum(abs(weight) * side.spread for weight, side in sides), counts.pop())

    def _difference(self, comparison: Comparison) -> Difference | None:
        return self.differences.get((comparison.text, comparison.where))

    def _side(self, place: Place) -> Summary | None:
        """Return the published mean of one side; a constant has no spread, and any number of seeds."""
        if place.number is not None:
            return Summary(place.number, 0.0, 0)
        own = self._mean(place.row, place.column, place.untrained)
        under = self._mean(place.over, place.column) if place.over else Summary(0.0, 0.0, 0)
        if own is None or under is None or (place.over and own.n != under.n):
            return None
        return Summary(own.mean - under.mean, own.spread + under.spread, own.n)

    def _mean(self, row: str, column: str, untrained: bool = False) -> Summary | None:
        found = self.means.get((row, column))
        if found is None:
            return None
        mean = found.untrained if untrained else found.number
        spread = found.untrained_spread if untrained else found.spread
        return None if mean is None or spread is None else Summary(mean, spread, found.n)

    def _missing(self, comparison: Comparison) -> dict[str, tuple[int, ...]]:
        """List the seeds for which a side has no outcome, by reason."""
        sides = {(row, place.column) for _, place in comparison.terms for row in (place.row, place.over)}
        done = {outcome.cell.name for outcome in self.outcomes}
        found: dict[str, set[int]] = {}
        for cell in self.planned:
            if (cell.row, cell.column) in sides and cell.name not in done:
                found.setdefault("stale" if cell.name in self.stale else "not run", set()).add(cell.seed)
        return {why: tuple(sorted(seeds)) for why, seeds in found.items()}

    def _paper(self, place: Place) -> float | None:
        if place.number is not None or place.untrained:
            return place.number
        known = self.table.row(place.row).paper.get(place.column)
        under = self.table.row(place.over).paper.get(place.column) if place.over else (0.0,)
        return known[0] - under[0] if known and under else None


def _at_least(group: Group, parts: tuple[TestedOrdering, ...]) -> TestedOrdering:
    """Combine comparisons into "at least k of n"."""
    k = group.ordering.at_least or 0
    against = sum(part.contradicted for part in parts)
    return TestedOrdering(
        text=f"{group.text}: {parts[0].text}" if len({part.text for part in parts}) == 1 else group.text,
        claim=group.ordering.claim,
        where=parts[0].where if len({part.where for part in parts}) == 1 else "",
        paper=None,
        contradicted=len(parts) - against < k,
        verdict=at_least([part.verdict for part in parts], k),
        parts=parts,
    )


def _valid(numbers: Mapping[int, float]) -> dict[int, float]:
    return {seed: number for seed, number in numbers.items() if not math.isnan(number)}
