"""report, watch: pages about runs; audit-log: what happened in one."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

from fedssl.commands.command import Command, progress_bar, trust_argument

# --- report ---------------------------------------------------------------------------------------


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder; several are compared")
    parser.add_argument("-o", "--out", default="report.html", metavar="FILE.html", help="default report.html")
    _image_arguments(parser)


def _image_arguments(parser: argparse.ArgumentParser) -> None:
    trust_argument(parser)
    parser.add_argument("--fast", action="store_true", help="leave out what needs the images again")
    parser.add_argument(
        "--map", default="tsne", choices=("tsne", "umap", "pca"), help="the feature map (default tsne)"
    )


def _report(options: argparse.Namespace) -> None:
    from fedssl.report.html import images, page
    from fedssl.report.html.data import document
    from fedssl.report.html.words import in_bytes

    images.check(options.map)
    page.check(Path(options.out))
    if options.fast:
        collected = document(options.runs)
    else:
        with progress_bar() as progress:
            collected = document(options.runs, lambda path: images.look(path, options.map, progress))
    page.write(collected, Path(options.out))
    for run in collected["runs"]:
        if run["images"].get("missing"):
            print(f"{run['name']}: without feature map and neighbours. {run['images']['why_not']}")
    print(f"wrote {options.out} ({in_bytes(Path(options.out).stat().st_size)})")


# --- watch ----------------------------------------------------------------------------------------


def _watch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--port", type=int, default=7575, help="on 127.0.0.1 (default 7575; 0: any free one)")
    _image_arguments(parser)


def _watch(options: argparse.Namespace) -> None:
    from fedssl.report.html import images, watch

    images.check(options.map)

    def draw(path: Path) -> dict[str, object]:
        return images.look(path, options.map)

    server = watch.serve(options.run, options.port, None if options.fast else draw)
    try:
        print(f"{options.run} is shown at {server.url} (Ctrl-C ends the page, not the run)", flush=True)
        threading.Event().wait()
    except KeyboardInterrupt:
        print("\nthe page has ended; a run that is under way goes on")
    finally:
        watch.close(server)


# --- audit-log ------------------------------------------------------------------------------------


def _audit_log_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("verify",), help="verify: whether the log is whole")
    parser.add_argument("run", help="the run's folder")
    parser.add_argument(
        "--head", default="", metavar="HASH", help="a hash that was the last one at some time"
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


COMMANDS = {
    "audit-log": Command("check the audit log of a run", _audit_log_arguments, _audit_log),
    "report": Command("write an HTML page about one run, or comparing several", _report_arguments, _report),
    "watch": Command("show the page of a run while it goes on", _watch_arguments, _watch),
}
