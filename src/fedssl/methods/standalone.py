"""No communication: every client trains on its own images only."""

from __future__ import annotations

from typing import ClassVar, Literal

from fedssl.methods.method import Aggregate, Method, ServerTools
from fedssl.models.model import Model
from fedssl.state import ServerState, Upload


class Standalone(Method):
    """Nothing is shared; results are means over the clients' own encoders."""

    evaluates: ClassVar[Literal["global", "personal"]] = "personal"

    def shares(self, model: Model) -> list[str]:
        return []

    def aggregate(self, server: ServerState, round: int, tools: ServerTools) -> Aggregate:
        return Unchanged(server)


class Unchanged(Aggregate):
    """A server state that never changes."""

    def __init__(self, server: ServerState) -> None:
        self.server = server

    def add(self, upload: Upload) -> dict[str, float]:
        return {}

    def finish(self) -> ServerState:
        return self.server
