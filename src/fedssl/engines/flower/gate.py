"""What stands before a SuperLink that can be reached from elsewhere.

Flower serves everything on one port. What starts runs and registers keys, and what runs the server's own
processes, is for this machine alone: otherwise whoever reaches the port could have code of theirs run at
every site. What sites may send is bounded before it is read, and a refusal leaves a line in the log.
"""

from __future__ import annotations

import ipaddress
import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from flwr.proto.message_pb2 import PushObjectRequest
from google.protobuf.message import DecodeError

FLEET, PUSH = "/v1/fleet/", "/v1/fleet/push-object"
CHUNK = 5 << 20  # Flower cuts arrays into pieces of this size
ROOM = 1 << 16  # bytes that a request may have beside what it carries
ENTRY = 128  # bytes that a piece takes in the list of what is to come

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

log = logging.getLogger("flwr")


class Refusal(Exception):
    """A request that does not get through."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Gate:
    """ASGI middleware: lets sites reach what is for sites, in messages of at most `max_bytes`."""

    def __init__(self, app: App, max_bytes: int) -> None:
        self.app = app
        self.pieces = -(-max_bytes // CHUNK)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # Flower speaks nothing else
            return
        if is_local(scope):
            await self.app(scope, receive, log_refusals(scope, send))
            return
        try:
            if not scope["path"].startswith(FLEET):
                raise Refusal(403, f"{scope['path']} is for the server's own machine")
            body = await self._read(scope, receive)
            if scope["path"] == PUSH:
                self._check_object(body)
        except Refusal as refused:
            log_refusal(scope, str(refused))
            await answer(send, refused)
            return
        await self.app(scope, replay_body(body, receive), log_refusals(scope, send))

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        """The request's body, as long as it is not longer than a right one can be."""
        most = ROOM + (CHUNK if scope["path"] == PUSH else ENTRY * self.pieces)
        body = bytearray()
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise Refusal(400, f"{scope['path']} was broken off")
            body += event.get("body", b"")
            if len(body) > most:
                raise Refusal(413, f"more than {most:,} bytes for {scope['path']}")
            if not event.get("more_body"):
                return bytes(body)

    def _check_object(self, body: bytes) -> None:
        """An array may not be put together of more pieces than an upload has."""
        try:
            content = PushObjectRequest.FromString(body).object_content
            head, _, rest = content.partition(b"\0")
            pieces = len(json.loads(rest)["arraychunk_ids"]) if head.split(b" ")[0] == b"Array" else 0
        except (DecodeError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise Refusal(400, f"no object of Flower's: {error}") from None
        if pieces > self.pieces:
            raise Refusal(413, f"an array of {pieces:,} pieces: at most {self.pieces} are accepted")


def is_local(scope: Scope) -> bool:
    """Whether a request comes from this machine."""
    client, server = scope.get("client"), scope.get("server")
    if not client:
        return False
    same = server is not None and client[0] == server[0]
    return same or ipaddress.ip_address(client[0]).is_loopback


def log_refusals(scope: Scope, send: Send) -> Send:
    """Pass on what the SuperLink answers, and note what it refuses to sites."""
    status = 0

    async def passing(event: Event) -> None:
        nonlocal status
        status = event.get("status", status)
        body = event.get("body", b"")
        if status >= 400 and body and scope["path"].startswith(FLEET):
            log_refusal(scope, body[:300].decode(errors="replace"))
        await send(event)

    return passing


def log_refusal(scope: Scope, reason: str) -> None:
    client = scope.get("client")
    log.warning("refused %s: %s", client[0] if client else "somebody", " ".join(reason.split()))


def replay_body(body: bytes, receive: Receive) -> Receive:
    """A body that was read already; then whatever comes next."""
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
