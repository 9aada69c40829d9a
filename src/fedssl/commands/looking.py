"""report, watch, status, audit-log: show what happened in runs."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedssl.commands.command import Command, trust_argument
from fedssl.progress import bar

if TYPE_CHECKING:
    from fedssl.report.html.images import Projection

# --- report ---------------------------------------------------------------------------------------


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="a run's folder, or a folder of runs; several runs are compared",
    )
    parser.add_argument(
        "-o", "--out", default="report.html", metavar="FILE", help=".html (default), .csv, .tex or .md"
    )
    parser.add_argument(
        "--centralized",
        metavar="RUN",
        help="a run with method.name=centralized, to compare a single run with",
    )
    _image_arguments(parser)


def _image_arguments(parser: argparse.ArgumentParser) -> None:
    trust_argument(parser)
    parser.add_argument("--fast", action="store_true", help="skip sections that need the images")
    parser.add_argument(
        "--map",
        default="tsne",
        choices=("tsne", "umap", "pca"),
        help="projection of the feature map (default tsne)",
    )


def _report(options: argparse.Namespace) -> None:
    from fedssl.report.sheet import is_sheet

    runs = [run for path in options.runs for run in find_runs(Path(path))]
    if is_sheet(options.out):
        from fedssl.report.html.sheets import sheets_of_runs
        from fedssl.report.sheet import write_sheets

        write_sheets(sheets_of_runs(runs), options.out)
        print(f"wrote {options.out}")
        return
    write_page(runs, Path(options.out), options.fast, options.map, options.centralized)


def find_runs(path: Path) -> list[Path]:
    """Return the run in a folder; if the folder is not a run, the runs below it."""
    if not path.is_dir() or (path / "config.toml").exists():
        return [path]
    found = sorted(
        file.parent for file in path.rglob("config.toml") if (file.parent / "metrics.jsonl").exists()
    )
    return found or [path]


def write_page(
    runs: Sequence[str | Path],
    out: Path,
    fast: bool = False,
    projection: Projection = "tsne",
    centralized: str | None = None,
    names: Mapping[Path, str] | None = None,
) -> None:
    """Write a report, print what it leaves out, and its path."""
    from fedssl.report.html.report import write_document
    from fedssl.report.html.words import in_bytes

    with bar() as progress:
        shown = write_document(
            runs,
            out,
            fast=fast,
            projection=projection,
            centralized=centralized,
            names=names,
            progress=progress,
        )
    for run in shown["runs"]:
        if run["images"].get("missing"):
            print(f"{run['name']}: without feature map and neighbors. {run['images']['why_not']}")
    print(f"wrote {out} ({in_bytes(out.stat().st_size)})")


# --- watch ----------------------------------------------------------------------------------------


def _watch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the run's folder")
    parser.add_argument(
        "--port", type=int, default=7575, help="port on 127.0.0.1 (default 7575; 0: any free port)"
    )
    _image_arguments(parser)


def _watch(options: argparse.Namespace) -> None:
    from fedssl.report.html import images, watch

    images.check(options.map)

    def draw(path: Path) -> dict[str, object]:
        return images.look(path, options.map)

    server = watch.serve(options.run, options.port, None if options.fast else draw)
    try:
        print(f"{options.run} is shown at {server.url} (Ctrl-C stops the page, not the run)", flush=True)
        threading.Event().wait()
    except KeyboardInterrupt:
        print("\nthe page has stopped; the run is not affected")
    finally:
        server.close()


# --- audit-log ------------------------------------------------------------------------------------


def _audit_log_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("verify",), help="verify: check that the log is unchanged")
    parser.add_argument("run", help="the run's folder")
    parser.add_argument(
        "--head", default="", metavar="HASH", help="an earlier last hash, which the log must still contain"
    )


def _audit_log(options: argparse.Namespace) -> None:
    from fedssl.engines.audit_log import verify
    from fedssl.engines.checkpoint import check_models

    folder = Path(options.run)
    found = verify(folder, options.head)
    compared = check_models(folder / "checkpoints", found.models)
    print(f"{found.entries:,} entries from {found.first} to {found.last}: whole")
    print(
        f"checkpoint of round {compared}: the model that was aggregated"
        if compared
        else "no checkpoint to compare with"
    )
    print(f"last hash: {found.head}")


# --- status ---------------------------------------------------------------------------------------


def _status_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _status(options: argparse.Namespace) -> None:
    import json

    from rich.console import Console

    from fedssl.report.status import status_line, status_of, status_table

    status = status_of(options.run)
    if options.json:
        print(json.dumps(status.to_dict(), indent=1))
    else:
        print(status_line(status))
        Console(highlight=False).print(status_table(status))


COMMANDS = {
    "audit-log": Command("check the audit log of a run", _audit_log_arguments, _audit_log),
    "report": Command("write an HTML report of one run or several", _report_arguments, _report),
    "status": Command("show the progress of a run, and of each client or site", _status_arguments, _status),
    "watch": Command("show the report of a run live", _watch_arguments, _watch),
}
