"""compare: compare settings over several seeds."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fedssl.commands.command import Command
from fedssl.errors import ConfigError, RunError

if TYPE_CHECKING:
    from fedssl.tables.compare import Comparison
    from fedssl.tables.results import Results

SEEDS = 3


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="[FILE.toml] key=a,b",
        help="keys with several values are compared in every combination; other keys apply to all runs",
    )
    parser.add_argument(
        "--seeds", type=int, default=0, metavar="N", help=f"number of seeds (default {SEEDS})"
    )
    parser.add_argument(
        "--first-seed", type=int, default=0, metavar="S", help="default 0; from 1000 on: tuning"
    )
    parser.add_argument("--columns", default="", metavar="KEY", help="a key whose values become columns")
    parser.add_argument(
        "--against",
        default="",
        metavar="ROW",
        help="row that the others are compared with (default: the first)",
    )
    parser.add_argument("--measure", default="", help="linear (default), knn, semi, personal, …")
    parser.add_argument("--out", default="runs/compare", metavar="FOLDER", help="folder for runs and tables")
    parser.add_argument(
        "-o",
        action="append",
        default=[],
        dest="files",
        metavar="FILE",
        help="a table or a page: .csv, .tex, .md, .html",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="runs at once, each with one thread (default 1)"
    )
    parser.add_argument("--dry-run", action="store_true", help="list what would run, and the estimated cost")


def comparison_of(options: argparse.Namespace) -> Comparison:
    """Build the comparison from a file and the keys given on the command line."""
    from dataclasses import replace

    from fedssl.config import parse_overrides
    from fedssl.tables.compare import Comparison, from_file, split_values

    first = options.words[:1]
    file = first[0] if first and "=" not in first[0] else None
    found = from_file(file) if file else Comparison()
    base, sweep, across = dict(found.base), dict(found.sweep), dict(found.across)
    for word in options.words[1:] if file else options.words:
        key, _, text = word.partition("=")
        values = [parse_overrides([f"{key}={value}"])[key] for value in split_values(text)]
        for known in (base, sweep, across):
            known.pop(key, None)
        if key == options.columns:
            across[key] = values
        elif len(values) > 1:
            sweep[key] = values
        else:
            base[key] = values[0]
    if options.columns and options.columns not in across:
        raise ConfigError(f"--columns {options.columns}: also give its values, {options.columns}=a,b")
    flags = ("columns", "against", "measure")
    chosen = [word for flag in flags if (given := getattr(options, flag)) for word in (f"--{flag}", given)]
    return replace(
        found,
        command=shlex.join(["fedssl", "compare", *options.words, *chosen]),
        base=base,
        sweep=sweep,
        across=across,
        against=options.against or found.against,
        measure=options.measure or found.measure,
    )


def _compare(options: argparse.Namespace) -> None:
    from rich.console import Console

    from fedssl.report.sheet import grid
    from fedssl.tables.campaign import Campaign
    from fedssl.tables.compare import sheets

    _check_files(options.files)
    comparison = comparison_of(options)
    campaign = Campaign(
        [comparison.table()],
        options.seeds or comparison.seeds or SEEDS,
        options.first_seed,
        out=Path(options.out),
        jobs=options.jobs,
        summarize=lambda results: "\n\n".join(f"{sheet.title}\n{grid(sheet)}" for sheet in sheets(results)),
    )
    console = Console(highlight=False, soft_wrap=True)
    if options.dry_run:
        campaign.estimate(console)
        return
    try:
        (results,) = campaign.run(console)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; the same command continues with what is missing") from None
    for file in options.files:
        _write(results, Path(file))


def _check_files(files: list[str]) -> None:
    """Check the output formats before hours of work."""
    from fedssl.report.sheet import SUFFIXES

    for file in files:
        if Path(file).suffix not in (*SUFFIXES, ".html"):
            raise ConfigError(f"-o {file}: the file must end in {', '.join((*SUFFIXES, '.html'))}")


def _write(results: Results, file: Path) -> None:
    from fedssl.report.sheet import write_sheets
    from fedssl.tables.compare import sheets

    if file.suffix != ".html":
        write_sheets(sheets(results), file)
        print(f"wrote {file}")
        return
    from fedssl.commands.looking import write_page

    several = len(results.columns) > 1
    done = [outcome for outcome in results.outcomes if not outcome.error]
    names = {
        outcome.path: f"{outcome.cell.row} · {outcome.cell.column}" if several else outcome.cell.row
        for outcome in done
    }
    if not names:
        raise RunError("no run has finished, so there is nothing to show")
    write_page(list(names), file, names=names)


COMMANDS = {
    "compare": Command("compare settings over several seeds, with significance tests", _arguments, _compare)
}
