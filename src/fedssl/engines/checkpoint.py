"""The whole state of a run after a round: one file for the server, one for every client's memory.

Random numbers need no state: they derive from (seed, round, client, purpose). Files are written in
the background from tensors that nobody changes any more.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from fedssl.engines.memory import MemoryStore
from fedssl.errors import RunError
from fedssl.state import ServerState, State
from fedssl.storage import load_tensors, save_tensors


class Checkpoints:
    """The checkpoints of one run, `round-N.safetensors`, and the client memories that belong to them."""

    def __init__(self, folder: Path, keep: int, memories: MemoryStore) -> None:
        self.folder, self.keep, self.memories = folder, keep, memories
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, round: int, server: ServerState, memory_rounds: dict[int, int]) -> None:
        """Begin to write; an error of the write before comes up here."""
        self.wait()
        written = dict(memory_rounds)
        self._thread = threading.Thread(target=self._write, args=(round, server, written))
        self._thread.start()

    def wait(self) -> None:
        """Until what was begun is on disk."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def latest(self) -> tuple[int, ServerState] | None:
        """The last round that was written whole, and the server's state after it."""
        rounds = self.rounds()
        if not rounds:
            return None
        return rounds[-1], self.load(rounds[-1])

    def rounds(self) -> list[int]:
        return round_numbers(self.folder)

    def load(self, round: int) -> ServerState:
        file = self._file(round)
        if not file.exists():
            raise RunError(f"no checkpoint of round {round} (there are: {self.rounds()})")
        tensors, values = load_tensors(file)
        server = ServerState(
            clusters=[{} for _ in range(values["clusters"])],
            nodes=[{} for _ in range(values["nodes"])],
            values=values["values"],
        )
        states = _states(server)
        for key, tensor in tensors.items():
            kind, name = key.split("/", 1)
            states[kind][name] = tensor
        return server

    def _write(self, round: int, server: ServerState, memory_rounds: dict[int, int]) -> None:
        try:
            self.memories.sync(memory_rounds)
            tensors = {
                f"{kind}/{name}": tensor
                for kind, state in _states(server).items()
                for name, tensor in state.items()
            }
            counts = {"clusters": len(server.clusters), "nodes": len(server.nodes)}
            save_tensors(self._file(round), tensors, {**counts, "values": server.values})
            self._remove_old()
            self.memories.prune(round)
        except BaseException as error:
            self._error = error

    def _remove_old(self) -> None:
        for old in self.rounds()[: -self.keep] if self.keep else []:
            os.remove(self._file(old))

    def _file(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.safetensors"


def round_numbers(folder: Path) -> list[int]:
    """The rounds of which a folder has checkpoints."""
    return sorted(int(file.stem.split("-")[1]) for file in folder.glob("round-*.safetensors"))


def _states(server: ServerState) -> dict[str, State]:
    """Every state of a server by the name that its tensors are stored under."""
    return {
        "model": server.model,
        "memory": server.memory,
        **{f"cluster-{number}": state for number, state in enumerate(server.clusters)},
        **{f"node-{number}": state for number, state in enumerate(server.nodes)},
    }
