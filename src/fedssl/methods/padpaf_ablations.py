"""PaDPaF without its split: everything is shared, or nothing. Both train as `padpaf` does."""

from __future__ import annotations

from typing import ClassVar, Literal

from fedssl.methods.method import Aggregate, ServerTools
from fedssl.methods.padpaf import PaDPaF
from fedssl.methods.standalone import Unchanged
from fedssl.models.model import Model
from fedssl.state import ServerState


class PaDPaFShared(PaDPaF):
    """Every parameter is shared, including those of style, as in the authors' code; buffers stay local."""

    def shares(self, model: Model) -> list[str]:
        return [name for name, _ in model.named_parameters()]


class PaDPaFAlone(PaDPaF):
    """Nothing is shared: each client trains the whole model on its own images."""

    evaluates: ClassVar[Literal["global", "cluster", "personal"]] = "personal"

    def shares(self, model: Model) -> list[str]:
        return []

    def aggregate(self, server: ServerState, round: int, tools: ServerTools) -> Aggregate:
        return Unchanged(server)
