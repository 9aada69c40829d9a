"""No communication: every client learns from its own images alone."""

from __future__ import annotations

from typing import ClassVar, Literal

from fedssl.methods.method import Aggregate, Method, ServerTools
from fedssl.models.model import Model
from fedssl.state import ServerState, Upload


class Standalone(Method):
    """Nothing is sent; the result is the average over the clients' own encoders."""

    evaluates: ClassVar[Literal["global", "personal"]] = "personal"

    def shares(self, model: Model) -> list[str]:
        return []

    def aggregate(self, server: ServerState, round: int, tools: ServerTools) -> Aggregate:
        return Unchanged(server)


class Unchanged(Aggregate):
    """A server that learns nothing."""

    def __init__(self, server: ServerState) -> None:
        self.server = server

    def add(self, upload: Upload) -> dict[str, float]:
        return {}

    def finish(self) -> ServerState:
        return self.server
