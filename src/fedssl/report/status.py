"""The status of a run, for `fedssl status` and metrics."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from fedssl.report.console import duration
from fedssl.rundir import RunDir, client_sizes

STALE = 10.0  # a run is called silent after this many round durations without news


@dataclass(frozen=True)
class SiteStatus:
    """A client or site: its images, rounds, failures, and the last reason."""

    name: str
    images: int
    rounds: int
    last_round: int
    failed: int
    last_failure: str


@dataclass(frozen=True)
class Status:
    """A run at one moment.

    Attributes:
        state: "finished", "running", "silent" (no news for long), or "not begun".
        done, rounds: number of complete rounds, and of all rounds.
        written: when the last round was recorded, in seconds since 1970.
        last: the last line of metrics.jsonl without its clients.
        knn: the last kNN monitor, if there is one: the server's, else the mean over sites.
        totals: bytes in each direction.
        sites: sites by name, or clients by number.
    """

    state: str
    done: int
    rounds: int
    written: float
    last: dict[str, Any]
    knn: float | None
    totals: dict[str, float]
    sites: tuple[SiteStatus, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def status_of(run: str | Path) -> Status:
    """Read the status of a run from its files."""
    directory = RunDir.open(run)
    config, metrics = directory.config(), directory.metrics()
    last = metrics[-1] if metrics else {}
    source = directory.metrics_file if metrics else directory.path / "config.toml"
    written = source.stat().st_mtime
    probes = [line["probe"] for line in metrics if {"knn", "site_knn"} & line.get("probe", {}).keys()]
    return Status(
        state=_state(directory, metrics, written),
        done=int(last.get("round", 0)),
        rounds=config.rounds,
        written=written,
        last={key: value for key, value in last.items() if isinstance(value, int | float)},
        knn=probes[-1].get("knn", probes[-1].get("site_knn")) if probes else None,
        totals={key: sum(line.get(key, 0) for line in metrics) for key in ("bytes_up", "bytes_down")},
        sites=_sites(directory, metrics, tuple(getattr(config.engine, "sites", ()))),
    )


def _state(directory: RunDir, metrics: list[dict[str, Any]], written: float) -> str:
    if directory.result_file.exists():
        return "finished"
    if not metrics:
        return "not begun"
    usual = sum(line["seconds"] for line in metrics) / len(metrics)
    return "silent" if time.time() - written > max(120.0, STALE * usual) else "running"


def _sites(
    directory: RunDir, metrics: list[dict[str, Any]], names: tuple[str, ...]
) -> tuple[SiteStatus, ...]:
    file = directory.path / "partition.json"
    sizes = client_sizes(directory.partition() if file.exists() else {}, metrics)
    found = []
    for number in range(max(len(names), len(sizes))):
        part = [line["round"] for line in metrics if number in (each["client"] for each in line["clients"])]
        failures = [each["reason"] for line in metrics for each in line["failed"] if each["client"] == number]
        found.append(
            SiteStatus(
                name=names[number] if number < len(names) else f"client {number}",
                images=sizes[number] if number < len(sizes) else 0,
                rounds=len(part),
                last_round=max(part, default=0),
                failed=len(failures),
                last_failure=str(failures[-1]) if failures else "",
            )
        )
    return tuple(found)


def status_line(status: Status) -> str:
    """Summarize the progress of a run in one line."""
    text = f"{status.state}: round {status.done} of {status.rounds}"
    if status.done:
        text += f", {duration(max(0.0, time.time() - status.written))} ago"
    if "seconds" in status.last:
        text += f", it took {duration(status.last['seconds'])}"
    if "loss" in status.last:
        text += f", loss {status.last['loss']:.4g}"
    return text + ("" if status.knn is None else f", kNN {status.knn:.1%}")


def status_table(status: Status) -> Table:
    """Return one row per client or site."""
    table = Table()
    table.add_column("")
    for column in ("images", "rounds", "last", "failed"):
        table.add_column(column, justify="right")
    table.add_column("last failure")
    for site in status.sites:
        images = f"{site.images:,}" if site.images else "–"
        numbers = (images, str(site.rounds), str(site.last_round or "–"), str(site.failed))
        table.add_row(site.name, *numbers, site.last_failure)
    return table
