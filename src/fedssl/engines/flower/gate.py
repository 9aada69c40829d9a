"""A filter in front of a SuperLink that can be reached from other machines.

Flower serves everything on one port. Requests that start runs, register keys or run the server's own
processes are only accepted from this machine and with the server's token. Otherwise, anybody who
reaches the port could start runs at every site. The size of requests is checked before they are read, and a
refusal is logged.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from flwr.proto.message_pb2 import PushObjectRequest
from google.protobuf.message import DecodeError

from fedssl.engines.audit_log import AuditLog

FLEET, PUSH = "/v1/fleet/", "/v1/fleet/push-object"
RUNTIME = "/v1/runtime/"  # for the server's own processes, which authenticate by a secret
CHUNK = 5 << 20  # size of the pieces that Flower splits arrays into
ROOM = 1 << 16  # bytes of a request beyond its payload, at most
ENTRY = 128  # bytes of a piece in the list of pieces
AGAIN = 60.0  # seconds after which the same refusal is logged again
MAX_LOGGED = 100  # refusals logged in that time

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger("flwr")


class Refusal(Exception):
    """A request that is refused."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Gate:
    """ASGI middleware: lets sites reach what is for sites, in messages of at most `max_bytes`.

    Other requests need the server's token, and must come from the same machine.
    """

    def __init__(self, app: App, max_bytes: int, token: str, audit: AuditLog | None = None) -> None:
        self.app, self.audit = app, audit
        self.pieces = -(-max_bytes // CHUNK)
        self.authorization = f"Bearer {token}".encode()
        self._noted: dict[tuple[str, str], float] = {}  # when a caller's refusal was last noted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # Flower uses no other protocol
            return
        try:
            if not scope["path"].startswith(FLEET):
                self._check_owner(scope)
                await self.app(scope, receive, send)
                return
            body = await self._read(scope, receive)
            if scope["path"] == PUSH:
                self._check_object(body)
        except Refusal as refused:
            self._note(scope, str(refused))
            await answer(send, refused)
            return
        await self.app(scope, replay_body(body, receive), self._noting(scope, send))

    def _check_owner(self, scope: Scope) -> None:
        """Check that a request comes from the server's own user."""
        if not is_local(scope):
            raise Refusal(403, f"{scope['path']} is for the server's own machine")
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if not scope["path"].startswith(RUNTIME) and not hmac.compare_digest(given, self.authorization):
            raise Refusal(401, f"{scope['path']} is for those who have the server's token")

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        """Read the request's body, up to the largest valid size."""
        most = ROOM + (CHUNK if scope["path"] == PUSH else ENTRY * self.pieces)
        body = bytearray()
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise Refusal(400, f"{scope['path']} is incomplete")
            body += event.get("body", b"")
            if len(body) > most:
                raise Refusal(413, f"more than {most:,} bytes for {scope['path']}")
            if not event.get("more_body"):
                return bytes(body)

    def _check_object(self, body: bytes) -> None:
        """Check that an array has no more pieces than an upload."""
        try:
            content = PushObjectRequest.FromString(body).object_content
            head, _, rest = content.partition(b"\0")
            pieces = len(json.loads(rest)["arraychunk_ids"]) if head.split(b" ")[0] == b"Array" else 0
        except (DecodeError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise Refusal(400, f"not an object of Flower: {error}") from None
        if pieces > self.pieces:
            raise Refusal(413, f"an array of {pieces:,} pieces: at most {self.pieces} are accepted")

    def _noting(self, scope: Scope, send: Send) -> Send:
        """Forward the SuperLink's answers, and log what it refuses to sites."""
        status = 0

        async def passing(event: Event) -> None:
            nonlocal status
            status = event.get("status", status)
            body = event.get("body", b"")
            if status >= 400 and body:
                self._note(scope, body[:300].decode(errors="replace"))
            await send(event)

        return passing

    def _note(self, scope: Scope, reason: str) -> None:
        """Log a refusal, at most once a minute for the same caller and path, to limit the log's size."""
        client, path, now = scope.get("client"), scope["path"][:100], time.monotonic()
        who, message = client[0] if client else "somebody", " ".join(reason.split())
        self._noted = {key: at for key, at in self._noted.items() if now - at < AGAIN}
        if (who, path) in self._noted or len(self._noted) >= MAX_LOGGED:
            return
        self._noted[who, path] = now
        log.warning("refused %s: %s", who, message)
        if self.audit is not None:
            self.audit.append("refused", address=who, path=path, reason=message)


def is_local(scope: Scope) -> bool:
    """Whether a request comes from this machine."""
    client, server = scope.get("client"), scope.get("server")
    if not client:
        return False
    same = server is not None and client[0] == server[0]
    return same or ipaddress.ip_address(client[0]).is_loopback


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Replay a body that was read already, then continue with the original messages."""
    given = False

    async def again() -> Event:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def answer(send: Send, refused: Refusal) -> None:
    body = json.dumps({"detail": str(refused)}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
