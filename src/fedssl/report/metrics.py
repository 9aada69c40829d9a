"""Health and metrics of a run, for monitoring on this machine: /health (JSON) and /metrics (Prometheus)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedssl.errors import RunError
from fedssl.report.loopback import HOST, LoopbackHandler, LoopbackServer
from fedssl.report.status import Status, status_of


def prometheus(status: Status) -> str:
    """Format a status for Prometheus."""
    lines: list[str] = []
    for name, kind, about, values in _families(status):
        if values:
            lines += [f"# HELP fedssl_{name} {about}", f"# TYPE fedssl_{name} {kind}"]
            lines += [f"fedssl_{name}{_labels(labels)} {value!r}" for labels, value in values]
    return "\n".join(lines) + "\n"


Values = list[tuple[dict[str, str], float]]


def _families(status: Status) -> Iterator[tuple[str, str, str, Values]]:
    yield "rounds_done", "gauge", "Rounds that are complete.", [({}, status.done)]
    yield "rounds", "gauge", "Rounds that the run will have.", [({}, status.rounds)]
    yield "finished", "gauge", "Whether the run has its result.", [({}, float(status.state == "finished"))]
    yield "last_round_timestamp_seconds", "gauge", "When the last round was recorded.", [({}, status.written)]
    last = status.last
    for name, key, about in (
        ("round_seconds", "seconds", "Duration of the last round."),
        ("loss", "loss", "Loss of the last round."),
    ):
        yield name, "gauge", about, [({}, last[key])] if key in last else []
    yield "knn_accuracy", "gauge", "Last kNN monitor.", [] if status.knn is None else [({}, status.knn)]
    for key, word in (("bytes_up", "received"), ("bytes_down", "sent")):
        yield f"{word}_bytes_total", "counter", f"Bytes {word} by the server.", [({}, status.totals[key])]
    sites = status.sites
    yield "site_images", "gauge", "Images of a site.", [({"site": s.name}, s.images) for s in sites]
    yield "site_rounds_total", "counter", "Rounds of a site.", [({"site": s.name}, s.rounds) for s in sites]
    yield (
        "site_failures_total",
        "counter",
        "Failures of a site.",
        [({"site": s.name}, s.failed) for s in sites],
    )


def _labels(labels: dict[str, str]) -> str:
    quoted = (
        f'{key}="' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        for key, value in labels.items()
    )
    return "{" + ",".join(quoted) + "}" if labels else ""


class Server(LoopbackServer):
    """Serves the health and the metrics of a run."""

    def __init__(self, run: Path, port: int) -> None:
        self.run = run
        super().__init__(port, Answer)


class Answer(LoopbackHandler):
    server: Server

    def answer(self) -> None:
        if self.path == "/metrics":
            try:
                text = prometheus(status_of(self.server.run))
            except (RunError, OSError):
                text = ""  # the run has not started
            return self.reply(text, "text/plain; version=0.0.4")
        if self.path == "/health":
            return self.reply(json.dumps(health(self.server.run)), "application/json")
        return self.send_error(404)


def health(run: Path) -> dict[str, Any]:
    """Return the progress of the run, which also shows that the process answers."""
    try:
        status = status_of(run)
    except (RunError, OSError):
        return {"status": "ok", "run": "not begun"}
    since = round(time.time() - status.written, 1)
    return {
        "status": "ok",
        "run": status.state,
        "round": status.done,
        "rounds": status.rounds,
        "seconds_since_last_round": since,
    }


def serve(run: Path, port: int) -> Server:
    """Serves in a thread; `close` stops it."""
    try:
        server = Server(run, port)
    except OSError as error:
        raise RunError(f"port {port} of {HOST} cannot be used for metrics: {error.strerror}") from error
    server.start()
    return server
