"""The common base of HTTP servers for this machine only."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

HOST = "127.0.0.1"


class LoopbackServer(ThreadingHTTPServer):
    """A server on the loopback interface.

    Args:
        port: 0: any free one.
        handler: what answers requests.
    """

    daemon_threads = True

    def __init__(self, port: int, handler: type[LoopbackHandler]) -> None:
        super().__init__((HOST, port), handler)

    def start(self) -> None:
        """Serve in a thread, until `close`."""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop serving and release the port."""
        self.shutdown()
        self.server_close()


class LoopbackHandler(BaseHTTPRequestHandler):
    """Answers GET requests that name this machine."""

    server: LoopbackServer
    headers_sent: ClassVar[dict[str, str]] = {}  # in addition to type and length

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        # DNS rebinding: a page from elsewhere could point its own host name at this machine.
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            return self.send_error(403, "only 127.0.0.1 and localhost are served")
        return self.answer()

    def answer(self) -> None:
        """Answer a request; the default has no pages."""
        self.send_error(404)

    def reply(self, text: str, kind: str) -> None:
        """Send a text of a MIME type."""
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in self.headers_sent.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""
