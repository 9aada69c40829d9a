"""Terminal output: a start panel, one line per round, a final table. Plain lines without a terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from fedssl.config import Config
from fedssl.data.partition_picture import text_bars
from fedssl.listener import Listener, RunInfo
from fedssl.privacy.protector import is_secret
from fedssl.report.detection import detection_table


class ConsoleListener(Listener):
    """Shows a run in a terminal, or logs it."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._rounds = 0
        self._first = 0
        self._began = 0.0
        self._loading: Progress | None = None
        self._task: TaskID | None = None
        self._probe = ""

    def progress(self, done: int, total: int, what: str) -> None:
        if self._loading is None:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self._loading = Progress(*columns, console=self.console, transient=True)
            self._loading.start()
            self._task = self._loading.add_task(what)
        assert self._task is not None
        self._loading.update(self._task, completed=done, total=total, description=what)

    def started(self, info: RunInfo) -> None:
        self._stop_loading()
        self._rounds, self._first, self._began = info.config.rounds, info.start, time.monotonic()
        for warning in info.warnings:
            self._say(f"warning: {warning}", "yellow")
        self.console.print(start_panel(info))

    def round(self, line: dict[str, Any]) -> None:
        number = line["round"]
        done = number - self._first
        left = (time.monotonic() - self._began) / done * (self._rounds - number)
        if "knn" in line.get("probe", {}):
            self._probe = f"{line['probe']['knn']:6.1%}"
        parts = [
            f"round {number:>{len(str(self._rounds))}}/{self._rounds}",
            f"loss {line['loss']:7.4f}" if "loss" in line else "",
            f"kNN {self._probe or '     –'}",
            f"divergence {line['divergence']:7.3f}" if "divergence" in line else "",
            f"ε {line['epsilon']:.3g}" if "epsilon" in line else "",
            f"{line['views'] / max(line['seconds'], 1e-9):6,.0f} views/s" if line["views"] else "",
            f"left {duration(left)}",
        ]
        self._say("  ".join(part for part in parts if part))
        for failure in line["failed"]:
            self._say(f"  client {failure['client']} left out: {failure['reason']}", "yellow")

    def note(self, text: str) -> None:
        self._say(text, "dim")

    def finished(self, result: dict[str, Any], path: Path) -> None:
        if result["probes"]:
            self.console.print(final_table(result["probes"]))
        if result["why_no_probes"]:
            self._say(f"no probes: {result['why_no_probes']}")
        failures = f", {result['failures']} client failures" if result["failures"] else ""
        self._say(
            f"{result['rounds']} rounds in {duration(result['seconds'])}, "
            f"{result['views_per_second']:,.0f} views/s, {result['peak_memory_mb']:,.0f} MB{failures}"
        )
        self._say(f"wrote {path}  (encoder.safetensors, metrics.jsonl, result.json)")

    def close(self) -> None:
        self._stop_loading()

    def _say(self, text: str, style: str | None = None) -> None:
        """Print one line of any length, because logs are searched by line."""
        self.console.print(text, style=style, markup=False, soft_wrap=True)

    def _stop_loading(self) -> None:
        if self._loading is not None:
            self._loading.stop()
            self._loading = None


def start_panel(info: RunInfo) -> Panel:
    """Describe data, clients, model and method."""
    config, federation, train = info.config, info.federation, info.federation.train
    height, width = train.size
    test = f", {len(federation.test):,} test" if federation.test is not None else ""
    labels = f"{len(train.classes)} classes" if train.y is not None else "unlabeled"
    rows = Table.grid(padding=(0, 2))
    rows.add_row(
        "data", f"{train.name}: {len(train):,} train{test}, {height}×{width}×{train.channels}, {labels}"
    )
    distance = info.earth_movers_distance
    apart = "" if distance is None else f", earth mover's distance {distance:.2f}"
    per_round = config.participation.per_round
    share = f"{per_round} per round" if isinstance(per_round, int) else f"{per_round:.0%} per round"
    rows.add_row("clients", f"{federation.clients}, {share}, {config.engine.describe_split(config)}{apart}")
    rows.add_row(
        "model",
        f"{config.objective.own_encoder or config.model.encoder}, {info.encoder_parameters:,} parameters; "
        f"{info.shared_parameters:,} numbers ({_size_on_wire(info)}) shared per client and round",
    )
    rows.add_row(
        "method",
        f"{config.objective.name} with {config.method.name}, aggregated by {config.aggregation.name}; "
        f"{config.rounds} rounds "
        f"of {config.train.epochs:g} epochs, batch {config.train.batch_size}, "
        f"{config.train.optimizer} {config.train.lr:g}",
    )
    if config.privacy.on or config.privacy.by_example:
        rows.add_row("privacy", describe_privacy(config))
    engine = config.engine
    alone = (
        f", {engine.all_threads} for a client that trains alone"
        if engine.all_threads > engine.threads
        else ""
    )
    rows.add_row("machine", f"{info.device}, {engine.workers} worker(s) of {engine.threads} thread(s){alone}")
    labels_array = None if train.y is None else train.y.numpy()
    bars = [Text(""), *text_bars(federation.parts, labels_array, train.classes)]
    title = f"fedssl · {info.path}" + (f" · resumed after round {info.start}" if info.start else "")
    shown = Group(rows, *(bars if config.engine.sees_clients else []))
    return Panel(shown, title=title, title_align="left", expand=False)


def _size_on_wire(info: RunInfo) -> str:
    """What a client sends in a round."""
    megabytes = info.shared_parameters * (2 if info.config.wire.dtype == "float16" else 4) / 1e6
    return f"{megabytes:.3g} MB" if megabytes >= 0.01 else f"{1000 * megabytes:.2g} KB"


def describe_privacy(config: Config) -> str:
    """Describe the privacy settings."""
    privacy, words = config.privacy, list[str]()
    if privacy.mode != "none":
        budget = f", budget ε = {privacy.epsilon:g}" if privacy.epsilon else ""
        hidden = "clients" if privacy.by_client else "images"
        words.append(
            f"noise {privacy.noise:g} at clip {privacy.clip:g} hides {hidden}, δ = {privacy.delta:g}{budget}"
        )
        if not is_secret(config):
            words.append("noise derived from the seed, for experiments only (privacy.random=secret)")
    if privacy.secure:
        words.append("secure aggregation: the server only sees sums")
    return "; ".join(words)


def final_table(probes: list[dict[str, Any]]) -> Table:
    """Format every probe next to the same probe on the untrained encoder."""
    table = Table(title="result", title_justify="left")
    for column in ("probe", "encoder", "images"):
        table.add_column(column)
    for column in ("accuracy", "macro-F1", "untrained", "gain"):
        table.add_column(column, justify="right")
    for probe in probes:
        table.add_row(
            probe["protocol"],
            probe["model"],
            probe["images"],
            f"{probe['accuracy']:.1%}"
            + (f" ± {probe['spread']:.1%}" if probe.get("spread") is not None else ""),
            f"{probe['macro_f1']:.1%}",
            f"{probe['untrained']:.1%}",
            f"{100 * probe['gain']:+.1f}",
        )
    return table


def style_table(probe: dict[str, Any]) -> Table:
    """Format accuracy on every style next to that of the untrained encoder."""
    table = Table(title=f"{probe['protocol']} per style", title_justify="left")
    table.add_column("style")
    for column in ("accuracy", "untrained", "gain"):
        table.add_column(column, justify="right")
    for row in probe["styles"]:
        gain = 100 * (row["accuracy"] - row["untrained"])
        table.add_row(row["style"], f"{row['accuracy']:.1%}", f"{row['untrained']:.1%}", f"{gain:+.1f}")
    return table


def class_table(probe: dict[str, Any]) -> Table:
    """Format precision, recall and F1 of every class."""
    table = Table(title=f"{probe['protocol']} per class", title_justify="left")
    table.add_column("class")
    for column in ("precision", "recall", "F1", "images"):
        table.add_column(column, justify="right")
    for row in probe["per_class"]:
        numbers = [f"{row[key]:.1%}" for key in ("precision", "recall", "f1")]
        table.add_row(str(row["class"]), *numbers, str(row["count"]))
    return table


def evaluation_tables(found: dict[str, Any]) -> list[Table]:
    """Format the output of `fedssl eval`: tables of a probe or of detection, or else plain numbers."""
    if "box" in found:
        return [detection_table(found)]
    if not {"accuracy", "macro_f1", "untrained", "gain", "per_class"} <= found.keys():
        return [number_table(found)]
    return [
        final_table([found]),
        *([style_table(found)] if found.get("styles") else []),
        class_table(found),
    ]


def number_table(found: dict[str, Any]) -> Table:
    """Format numbers and texts from a user's protocol, one per row."""
    table = Table(title=found["protocol"], title_justify="left")
    table.add_column("name")
    table.add_column("value", justify="right")
    for name, value in found.items():
        if name != "protocol" and isinstance(value, str | int | float):
            table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    return table


def duration(seconds: float) -> str:
    """Format 75 as 1m15s."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
