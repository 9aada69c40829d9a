"""Serves the live report of a run, on this machine only."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, ClassVar

from fedssl.errors import ConfigError, FedsslError, RunError
from fedssl.report.html.data import Images, document
from fedssl.report.html.files import stamp
from fedssl.report.html.page import page
from fedssl.report.loopback import HOST, LoopbackHandler, LoopbackServer
from fedssl.rundir import RunDir

EVERY = 2.0  # seconds between updates of the page
PENDING = "Computed after the run has finished, so that training is not slowed down."
DRAWING = "The run has finished; computing this section."


class Live:
    """The document of a run, updated when its files change."""

    def __init__(self, path: Path, images: Images | None = None) -> None:
        self.path, self.images = RunDir.open(path).path, images
        self._lock = threading.Lock()
        self._stamp: Any = None
        self._document: dict[str, Any] = {}
        self._drawn: dict[str, Any] | None = None
        self._drawing: threading.Thread | None = None

    def document(self) -> dict[str, Any]:
        with self._lock:
            now = (stamp(self.path), self._drawn is not None)
            if now != self._stamp:
                self._document = document([self.path], self._parts, PENDING)
                self._stamp = now
            return self._document

    def _parts(self, path: Path) -> dict[str, Any]:
        """Compute the parts that need images once, after the end, in the background."""
        if self._drawn is not None:
            return self._drawn
        if self.images is None:
            return {"why_not": "Skipped: --fast."}
        if not RunDir(path).config().engine.sees_clients:
            return {"why_not": "The images are at the sites, so there is no feature map."}
        if not RunDir(path).result_file.exists():
            return {"why_not": PENDING}
        if self._drawing is None:
            self._drawing = threading.Thread(target=self._draw, args=(self.images,), daemon=True)
            self._drawing.start()
        return {"why_not": DRAWING}

    def _draw(self, images: Images) -> None:
        self._drawn = images(self.path)


class Server(LoopbackServer):
    """Serves the page and its document, and nothing else."""

    def __init__(self, live: Live, port: int) -> None:
        self.live = live
        super().__init__(port, Answer)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"


class Answer(LoopbackHandler):
    server: Server
    headers_sent: ClassVar[dict[str, str]] = {"Cache-Control": "no-store"}

    def answer(self) -> None:
        if self.path not in ("/", "/document.json"):
            return self.send_error(404)
        try:
            document = self.server.live.document()
        except (FedsslError, OSError) as error:  # the folder was deleted
            return self.send_error(500, explain=str(error))
        if self.path == "/":
            return self.reply(page(document, live=EVERY), "text/html")
        return self.reply(json.dumps(document), "application/json")


def serve(path: str | Path, port: int, images: Images | None = None) -> Server:
    """Serves the page in a thread; `close` stops it."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port}: ports are from 0 (any free one) to 65535")
    live = Live(Path(path), images)
    try:
        server = Server(live, port)
    except OSError as error:
        raise RunError(
            f"port {port} of {HOST} cannot be used ({error.strerror}): use another --port, or 0 for any"
        ) from error
    server.start()
    return server
