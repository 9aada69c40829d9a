"""Health and metrics of a run, for monitoring on this machine: /health (JSON) and /metrics (Prometheus)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedssl.errors import RunError
from fedssl.report.status import Status, status_of

HOST = "127.0.0.1"


def prometheus(status: Status) -> str:
    """A status in the text format of Prometheus."""
    lines: list[str] = []
    for name, kind, about, values in _families(status):
        if values:
            lines += [f"# HELP fedssl_{name} {about}", f"# TYPE fedssl_{name} {kind}"]
            lines += [f"fedssl_{name}{_labels(labels)} {value:g}" for labels, value in values]
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


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, run: Path, port: int) -> None:
        self.run = run
        super().__init__((HOST, port), Answer)


class Answer(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            return self.send_error(403, "only 127.0.0.1 and localhost are served")
        if self.path == "/metrics":
            try:
                return self._send(200, prometheus(status_of(self.server.run)), "text/plain; version=0.0.4")
            except (RunError, OSError):
                return self._send(200, "", "text/plain; version=0.0.4")  # the run has not begun
        if self.path == "/health":
            return self._send(200, json.dumps(health(self.server.run)), "application/json")
        return self.send_error(404)

    def _send(self, code: int, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def health(run: Path) -> dict[str, Any]:
    """That the process answers, and how far the run is."""
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
    """A server in a thread of its own; `close` ends it."""
    try:
        server = Server(run, port)
    except OSError as error:
        raise RunError(f"port {port} of {HOST} cannot be used for metrics: {error.strerror}") from error
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def close(server: Server) -> None:
    server.shutdown()
    server.server_close()
