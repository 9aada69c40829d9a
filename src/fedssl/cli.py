"""The command line. PyTorch is imported only by the commands that need it."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from fedssl._version import __version__
from fedssl.allocator import keep_freed_memory
from fedssl.commands import auditing, comparing, deploying, device, generating, looking, privacy, using
from fedssl.commands.command import Command, trust_argument
from fedssl.errors import ConfigError, FedsslError, did_you_mean
from fedssl.trust import trusting

PURPOSE = "Learn one visual encoder from unlabeled images that never leave their owners."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Exit codes: 0 success, 1 failure, 2 wrong command or config, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return dispatch(words)
    except FedsslError as error:
        print(f"fedssl: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as stop:  # the message says how to continue a run
        print(f"\nfedssl: {str(stop) or 'stopped'}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `fedssl list | head`
        sys.stderr.close()
        return 0
    except OSError as error:  # a file that cannot be read, a folder that cannot be written
        where = f"{error.filename}: " if error.filename is not None else ""
        print(f"fedssl: {where}{error.strerror or error}", file=sys.stderr)
        return 1


def dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview())
    elif words[0] == "--version":
        print(f"fedssl {__version__}")
    elif words[0] not in COMMANDS:
        raise ConfigError(f"unknown command {words[0]!r}: {did_you_mean(words[0], COMMANDS)}")
    else:
        command = COMMANDS[words[0]]
        parser = argparse.ArgumentParser(
            prog=f"fedssl {words[0]}", description=command.purpose, add_help=words[0] != "run"
        )
        command.arguments(parser)
        options = parser.parse_intermixed_args(words[1:])
        with trusting(getattr(options, "trust", False)), keep_freed_memory():
            command.do(options)
    return 0


def overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.purpose}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            PURPOSE,
            "",
            "usage: fedssl COMMAND …",
            "",
            *lines,
            "",
            "`fedssl COMMAND --help` lists the options of a command.",
        ]
    )


# --- run, resume ----------------------------------------------------------------------------------


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-h",
        "--help",
        nargs="?",
        const="",
        metavar="SECTION",
        help="show this help, the keys of a config section, or `all` keys",
    )
    parser.add_argument(
        "words", nargs="*", metavar="[CONFIG.toml] key=value", help="a config, then overrides"
    )
    parser.add_argument("--out", help="the run's folder (default: runs/DATA-OBJECTIVE-METHOD)")
    parser.add_argument("--report", action="store_true", help="also write report.html into the run's folder")
    _quiet(parser)
    parser.set_defaults(usage=parser.format_help)


def _quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def _run(options: argparse.Namespace) -> None:
    if options.help is not None:
        _run_help(options)
        return
    from fedssl.config import load, parse_overrides

    first = options.words[:1]
    file = first[0] if first and "=" not in first[0] else None
    config = load(file, parse_overrides(options.words[1:] if file else options.words))
    from fedssl import api

    run = api.run(config, out=options.out, quiet=options.quiet)
    if options.report:
        looking.write_page([run.path], run.path / "report.html")
    if not options.quiet:
        labeled = not run.result["why_no_probes"]
        print(f"\nnext\n{next_commands(run.path, options.report, labeled)}")


def next_commands(path: Path, reported: bool, labeled: bool) -> str:
    """Return the three most useful commands after a run.

    Args:
        path: the run's folder.
        reported: whether its report was written.
        labeled: whether its images have labels to evaluate it with.
    """
    run = shlex.quote(str(path))
    commands = {
        f"fedssl report {run} -o report.html": "a page with curves, clients, feature map and neighbors",
        f"fedssl eval {run} --protocol knn": "another probe; `fedssl list protocols` lists all",
        f"fedssl embed {run} IMAGES -o vectors.parquet": "vectors of your images",
        f"fedssl export {run} --to onnx -o encoder": "the encoder for other programs",
        f"fedssl search {run} IMAGE IMAGES": "images similar to one of yours",
    }
    left_out = {"report" if reported else "", "" if labeled else "eval"}
    shown = [(command, about) for command, about in commands.items() if command.split()[1] not in left_out][
        :3
    ]
    width = max(len(command) for command, _ in shown)
    return "\n".join(f"  {command:<{width}}  {about}" for command, about in shown)


def _run_help(options: argparse.Namespace) -> None:
    from fedssl.commands import help

    if "=" in options.help:  # `fedssl run --help method.name=./mine.py:Mine`
        options.words, options.help = [*options.words, options.help], ""
    if options.help:
        print(help.describe(options.help, options.words))
    else:
        print(f"{options.usage()}\n{help.overview(options.words)}")


def _resume_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the run's folder")
    trust_argument(parser)
    parser.add_argument(
        "words", nargs="*", metavar="rounds=N", help="train to round N, even if the run has finished"
    )
    _quiet(parser)


def _resume(options: argparse.Namespace) -> None:
    from fedssl.config import parse_overrides

    overrides = parse_overrides(options.words)
    for key in overrides:
        if key != "rounds":
            raise ConfigError(
                f"{key} cannot change within a run; only rounds can. Start a new run for other changes"
            )
    rounds = overrides.get("rounds", 0)
    if not isinstance(rounds, int) or (overrides and rounds < 1):
        raise ConfigError(f"rounds={rounds}: must be a whole number of at least 1")
    from fedssl import api

    api.resume(options.run, rounds=rounds, quiet=options.quiet)


# --- eval -----------------------------------------------------------------------------------------


def _eval_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the run's folder")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="data.*, probe.*, semi.*, detection.*, device, protocol.*",
    )
    parser.add_argument(
        "--protocol",
        default="linear",
        help="a name in `fedssl list protocols`, or your own class: ./file.py:Class (default linear)",
    )
    trust_argument(parser)


def _eval(options: argparse.Namespace) -> None:
    from rich.console import Console

    from fedssl.api import Run
    from fedssl.config import parse_overrides
    from fedssl.report.console import evaluation_tables

    found = Run(options.run).probe(options.protocol, **parse_overrides(options.overrides))
    console = Console(highlight=False)
    for table in evaluation_tables(found):
        console.print(table)


# --- reproduce ------------------------------------------------------------------------------------


def _reproduce_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="TABLE key=value",
        help="recipes (see `fedssl list recipes`; default: all), then overrides for every row",
    )
    parser.add_argument("--scale", default="smoke", help="smoke, mini, midi or paper (default smoke)")
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="number of seeds (default 3; with --stored: all stored ones)"
    )
    parser.add_argument(
        "--first-seed", type=int, default=0, metavar="S", help="default 0; from 1000 on: for tuning"
    )
    parser.add_argument("--rows", default="", metavar="a,b", help="only these rows of the table")
    parser.add_argument("--columns", default="", metavar="c,d", help="only these columns of the table")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="run N cells at once, each in a process with one thread (default 1: one by one)",
    )
    parser.add_argument(
        "--stored",
        action="store_true",
        help="build tables and pictures from stored results, without training",
    )
    parser.add_argument("--dry-run", action="store_true", help="list what would run, and the estimated cost")
    parser.add_argument("--out", default="runs/reproduce", help="folder for runs and tables")
    parser.add_argument(
        "--store", metavar="DIR", help="stored results (default: docs/results/cells in a checkout)"
    )


def _reproduce(options: argparse.Namespace) -> None:
    from fedssl.config import parse_overrides
    from fedssl.papers import reproduce

    reproduce(
        *(word for word in options.words if "=" not in word),
        scale=options.scale,
        seeds=options.seeds,
        first_seed=options.first_seed,
        rows=options.rows,
        columns=options.columns,
        jobs=options.jobs,
        stored=options.stored,
        dry_run=options.dry_run,
        out=options.out,
        store=options.store,
        overrides=parse_overrides(word for word in options.words if "=" in word),
    )


# --- theory ---------------------------------------------------------------------------------------


def _theory_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--out", required=True, metavar="FILE.png", help="the picture")
    parser.add_argument("--dimensions", type=int, nargs="+", metavar="d", help="default 100 200 400 800")
    parser.add_argument("--sources", type=int, default=3, metavar="K", help="data sources (default 3)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the data (default 0)")


def _theory(options: argparse.Namespace) -> None:
    from rich.progress import track

    from fedssl.papers.analysis.theory import DIMENSIONS, save_picture, study, table

    dimensions = options.dimensions or DIMENSIONS
    studies = [study(d, options.sources, options.seed) for d in track(dimensions, "solving", transient=True)]
    print(table(studies))
    save_picture(options.out, studies)
    print(f"wrote {options.out}")


# --- list -----------------------------------------------------------------------------------------


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", help="methods, objectives, aggregations, datasets, …")


def _list(options: argparse.Namespace) -> None:
    from fedssl.commands.keys import LISTS

    if options.kind is not None and options.kind not in LISTS:
        raise ConfigError(f"cannot list {options.kind!r}: {did_you_mean(options.kind, LISTS)}")
    for kind in LISTS if options.kind is None else [options.kind]:
        rows = LISTS[kind]()
        width = max((len(name) for name in rows), default=0)
        print(f"{kind}:")
        for name, summary in rows.items():
            print(f"  {name:<{width}}  {summary}".rstrip())


COMMANDS = {
    "run": Command("train a federation and probe its encoder", _run_arguments, _run),
    "resume": Command("continue a run from its last checkpoint", _resume_arguments, _resume),
    "eval": Command("evaluate the encoder of a run", _eval_arguments, _eval),
    **comparing.COMMANDS,
    **looking.COMMANDS,
    "reproduce": Command("run a table or figure of a paper", _reproduce_arguments, _reproduce),
    "theory": Command(
        "demonstrate on linear models why self-supervision is robust to heterogeneity",
        _theory_arguments,
        _theory,
    ),
    **using.COMMANDS,
    **device.COMMANDS,
    **generating.COMMANDS,
    **privacy.COMMANDS,
    **auditing.COMMANDS,
    **deploying.COMMANDS,
    "list": Command("list methods, objectives, data sets and other choices", _list_arguments, _list),
}

if __name__ == "__main__":
    sys.exit(main())
