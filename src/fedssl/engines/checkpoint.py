"""Checkpoints: the state of a run after a round, with one file for the server and one per client memory.

Random numbers need no state: they derive from (seed, round, client, purpose). Files are written in the
background from tensors that are no longer changed. Each has a checksum, and a checkpoint names the memories
that belong to it, so that a run only continues from a complete state.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fedssl.engines.memory import MemoryStore
from fedssl.errors import RunError
from fedssl.state import ServerState, State, digest
from fedssl.tensorfile import load_tensors, save_tensors

NAME = re.compile(r"round-(\d{6,})\.safetensors")
CLIENTS, WRITTEN = "memories/clients", "memories/rounds"  # further tensors in the server's file


@dataclass(frozen=True)
class Checkpoint:
    """A run after a round.

    Attributes:
        round: the round.
        server: the server's state after it.
        memory_rounds: for every client with a memory, the round that wrote it.
    """

    round: int
    server: ServerState
    memory_rounds: dict[int, int]


class Checkpoints:
    """The checkpoints of one run, `round-N.safetensors`, and the client memories that belong to them.

    Args:
        folder: the folder of checkpoints.
        keep: how many to keep; 0: all.
        memories: the store of client memories.
    """

    def __init__(self, folder: Path, keep: int, memories: MemoryStore) -> None:
        self.folder, self.keep, self.memories = folder, keep, memories
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, round: int, server: ServerState, memory_rounds: dict[int, int]) -> None:
        """Start to write a checkpoint; raises the error of the previous write, if any."""
        self.wait()
        written = dict(memory_rounds)
        self._thread = threading.Thread(target=self._write, args=(Checkpoint(round, server, written),))
        self._thread.start()

    def wait(self) -> None:
        """Wait until the checkpoint is on disk."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def latest(self) -> Checkpoint | None:
        """Load the last checkpoint; raises a RunError if it is damaged."""
        rounds = self.rounds()
        return self.load(rounds[-1]) if rounds else None

    def latest_whole(self, most: int, tell: Callable[[str], None]) -> Checkpoint | None:
        """Load the last complete checkpoint, with all its memories.

        Args:
            most: the last round to consider.
            tell: called with the reason why a later checkpoint is not used.

        Returns:
            The checkpoint; None if there are no checkpoints.

        Raises:
            RunError: no checkpoint is complete.
        """
        problems: list[str] = []
        for round in reversed(self.rounds()):
            try:
                if round > most:
                    raise RunError(f"metrics.jsonl is complete up to round {most}")
                found = self.load(round)
                self.memories.check(found.memory_rounds)
            except RunError as error:
                problems.append(f"the checkpoint of round {round} cannot be used: {error}")
                continue
            for problem in problems:
                tell(f"{problem}; going back to round {round}")
            return found
        if problems:
            raise RunError(
                f"this run cannot be continued: {'; '.join(problems)}. Nothing was changed. With "
                "checkpoint.keep of 2 or more, a run goes back to an earlier checkpoint"
            )
        return None

    def rounds(self) -> list[int]:
        """The rounds of all checkpoints; other files in the folder are ignored."""
        return rounds_in(self.folder)

    def load(self, round: int) -> Checkpoint:
        """Load the checkpoint of a round."""
        file = self._file(round)
        if not file.exists():
            raise RunError(f"no checkpoint of round {round} (existing ones: {self.rounds()})")
        return load_checkpoint(file, round)

    def remove_after(self, round: int) -> None:
        """Delete later checkpoints, whose rounds will be repeated."""
        for later in self.rounds():
            if later > round:
                self._file(later).unlink(missing_ok=True)

    def _write(self, checkpoint: Checkpoint) -> None:
        try:
            server, written = checkpoint.server, checkpoint.memory_rounds
            self.memories.sync(written)
            tensors = {
                f"{kind}/{name}": tensor
                for kind, state in _states(server).items()
                for name, tensor in state.items()
            }
            values = {
                "clusters": len(server.clusters),
                "nodes": len(server.nodes),
                "values": server.values,
                "order": list(tensors),  # sums over tensors have the same last digits in the same order
            }
            tensors[CLIENTS] = torch.tensor(list(written), dtype=torch.int64)
            tensors[WRITTEN] = torch.tensor(list(written.values()), dtype=torch.int64)
            save_tensors(self._file(checkpoint.round), tensors, values)
            self._remove_old()
            # With `keep` of 0 all servers are kept, and memories for the last two.
            self.memories.prune(self.rounds()[-(self.keep or 2) :][0])
        except BaseException as error:
            self._error = error

    def _remove_old(self) -> None:
        for old in self.rounds()[: -self.keep] if self.keep else []:
            os.remove(self._file(old))

    def _file(self, round: int) -> Path:
        return file_of(self.folder, round)


def file_of(folder: Path, round: int) -> Path:
    return folder / f"round-{round:06d}.safetensors"


def rounds_in(folder: Path) -> list[int]:
    """The rounds of all files `round-N.safetensors` in a folder."""
    matches = (NAME.fullmatch(file.name) for file in folder.glob("round-*.safetensors"))
    return sorted(int(match[1]) for match in matches if match)


def load_checkpoint(file: Path, round: int) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        RunError: it is damaged.
    """
    tensors, values = load_tensors(file, checked=True)
    try:
        server = ServerState(
            clusters=[{} for _ in range(values["clusters"])],
            nodes=[{} for _ in range(values["nodes"])],
            values=values["values"],
        )
        states = _states(server)
        for key in values["order"]:
            kind, name = key.split("/", 1)
            states[kind][name] = tensors[key]
        clients, written = tensors[CLIENTS].tolist(), tensors[WRITTEN].tolist()
    except (KeyError, ValueError, TypeError) as error:
        raise RunError(f"{file} is not a checkpoint of this version of fedssl: {error!r}") from error
    return Checkpoint(round, server, dict(zip(clients, written, strict=True)))


def check_models(folder: Path, models: Mapping[int, Sequence[str]]) -> int:
    """Compare the last checkpoint with the hashes of the global models by round.

    Returns:
        The round of the checkpoint; 0 without a checkpoint, or without a hash of its round.

    Raises:
        RunError: the checkpoint contains another model.
    """
    for round in reversed(rounds_in(folder)):
        if round in models:
            file = file_of(folder, round)
            states = load_checkpoint(file, round).server.states
            if [digest(state) for state in states] != list(models[round]):
                raise RunError(f"{file}: this is not the model that was aggregated in round {round}")
            return round
    return 0


def _states(server: ServerState) -> dict[str, State]:
    """Every state of a server by the name that its tensors are stored under."""
    return {
        "model": server.model,
        "memory": server.memory,
        **{f"cluster-{number}": state for number, state in enumerate(server.clusters)},
        **{f"node-{number}": state for number, state in enumerate(server.nodes)},
    }
