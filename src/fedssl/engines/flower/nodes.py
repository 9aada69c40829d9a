"""Identifies the clients behind the nodes of a grid."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import httpx
from flwr.app import Message

from fedssl.engines.audit_log import AuditLog
from fedssl.engines.flower.messages import HELLO, read_text, records
from fedssl.engines.wire import WireError
from fedssl.errors import FedsslError

if TYPE_CHECKING:
    from flwr.proto.node_pb2 import NodeInfo

GRID_RUNS = 1.0  # seconds between checks of connected nodes


class Grid(Protocol):
    """The interface of a Flower grid that is used here."""

    def get_nodes(self) -> Iterable[NodeInfo]: ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


def pull_answers(grid: Grid, ids: Iterable[str]) -> Iterator[tuple[str, Message | None, str]]:
    """Return the answers to these messages, each with its message, or the reason why it cannot be read.

    One at a time, because Flower assembles answers from what sites sent, raises any resulting error, and
    accepts an answer that claims to belong to another site's question.
    """
    for id in ids:
        try:
            found: list[Message] = list(grid.pull_messages([id]))
        except (FedsslError, httpx.HTTPError):
            raise  # the SuperLink is gone, or the simulation
        except Exception as error:
            yield id, None, f"{type(error).__name__}: {str(error)[:200]}"
        else:
            yield from ((id, message, "") for message in found)


@dataclass(frozen=True)
class Node:
    """A connected node, and the time it connected: a restarted node has lost its task."""

    id: int
    since: str


class Nodes:
    """The nodes of a grid by client id.

    A site is known by the name that its key was registered with. A node without one (simulated, or of a
    server without authentication) is asked who it is.
    """

    def __init__(
        self,
        grid: Grid,
        sites: tuple[str, ...],
        clients: int,
        tell: Callable[[str], None],
        audit: AuditLog | None = None,
    ) -> None:
        self.grid, self.sites, self.clients, self.tell, self.audit = grid, sites, clients, tell, audit
        self._there: dict[int, Node] = {}
        self._client: dict[int, int | None] = {}  # by node id; None: no client of ours
        self._asked: dict[str, int] = {}

    def connected(self) -> dict[int, Node]:
        """The connected nodes by client id."""
        infos = {info.node_id: info for info in self.grid.get_nodes()}
        for info in infos.values():
            if info.node_id not in self._client and info.name:
                self._introduce(info.node_id, info.name)
        self._ask(node for node in infos if node not in self._client)
        self._read_introductions()
        found: dict[int, Node] = {}
        for node, info in sorted(infos.items(), key=lambda item: item[1].last_activated_at):
            client = self._client.get(node)
            if client is not None:
                found[client] = Node(node, info.last_activated_at)
        if self.audit is not None:
            self._note(self.audit, found)
        return dict(sorted(found.items()))

    def _note(self, audit: AuditLog, found: dict[int, Node]) -> None:
        """Log which clients connected or left since the last check."""
        for client in sorted(self._there.keys() | found.keys()):
            before, now = self._there.get(client), found.get(client)
            if now is not None and now != before:
                audit.append("connected", site=self.sites[client], node=now.id)
            elif now is None:
                audit.append("left", site=self.sites[client])
        self._there = dict(found)

    def _introduce(self, node: int, name: object) -> None:
        """Identify a site by its name, a simulated node by its number."""
        client: int | None = None
        if isinstance(name, int) and not self.sites and name in range(self.clients):
            client = name
        elif isinstance(name, str) and name in self.sites:
            client = self.sites.index(name)
        self._client[node] = client
        if client is None:
            self.tell(f"node {node} is left out: {str(name)[:64]!r} is not a client of this run")

    def _ask(self, nodes: Iterable[int]) -> None:
        asked = set(self._asked.values())
        messages = [Message(records({}), node, HELLO) for node in nodes if node not in asked]
        if messages:
            ids = list(self.grid.push_messages(messages))
            self._asked |= {
                id: message.metadata.dst_node_id for id, message in zip(ids, messages, strict=True) if id
            }

    def _read_introductions(self) -> None:
        for id, message, _ in pull_answers(self.grid, list(self._asked)):
            node = self._asked.pop(id)
            if message is not None and not message.has_content():
                continue  # it left or failed: it is asked again once it is connected
            try:
                reply = {} if message is None else read_text(message.content)
            except WireError:
                reply = {}
            name = reply.get("name", reply.get("partition-id")) if isinstance(reply, dict) else None
            self._introduce(node, name)

    def wait(self, enough: int, hoped: int, patience: float) -> dict[int, Node]:
        """Return the connected clients once there are `hoped`, or, after the waiting time, `enough`."""
        began, next_note = time.monotonic(), 0.0
        while True:
            found = self.connected()
            waited = time.monotonic() - began
            absent = [name for client, name in enumerate(self.sites) if client not in found]
            if len(found) >= hoped or (len(found) >= enough and waited >= patience):
                if absent and next_note:
                    self.tell(f"going on without {', '.join(absent)}, who may join in any later round")
                return found
            if self.sites and waited >= next_note:
                self.tell(f"waiting for {', '.join(absent)} ({len(found)} of {self.clients} are connected)")
                next_note = waited + 60.0
            time.sleep(GRID_RUNS if self.sites else 0.1)
