"""What crosses the network in a round, in bytes, whatever the engine."""

from __future__ import annotations

from fedssl.engines import wire
from fedssl.engines.tasks import Outcome
from fedssl.state import Broadcast, State


class WireTraffic:
    """What is sent and what comes back in a round: rounded, and counted in bytes."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.down = self.up = 0
        self._rounded: dict[int, tuple[State, State]] = {}  # by identity of the model, which is kept alive

    def round(self, broadcast: Broadcast) -> Broadcast:
        """Round what one client is sent. A model that is sent to many clients is rounded once."""
        return broadcast.map(self._round_model)

    def _round_model(self, model: State) -> State:
        if id(model) not in self._rounded:
            rounded = model if self.dtype == "float32" else wire.round_to_dtype(model, self.dtype)
            self._rounded[id(model)] = (model, rounded)
        self.down += wire.num_bytes(model, self.dtype)
        return self._rounded[id(model)][1]

    def count(self, outcome: Outcome) -> None:
        if outcome.upload is not None:
            self.up += wire.num_bytes(outcome.upload.state, self.dtype)
