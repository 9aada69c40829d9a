"""Client memories on disk, with a bounded cache.

A memory is one file, `clients/ID/round-N.safetensors`, named after the round that wrote it. Older
files stay until no checkpoint needs them: a run that is killed finds, for every client, the memory
that belongs to the checkpoint it resumes from. Other files in the folder are ignored.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedssl.errors import RunError
from fedssl.state import ClientMemory
from fedssl.tensorfile import load_tensors, save_tensors

NAME = re.compile(r"round-(\d{6,})\.safetensors")


class MemoryStore:
    """The memories of all clients of a run."""

    def __init__(self, folder: Path, cache_mb: int) -> None:
        self.folder = folder
        self.limit = cache_mb * 2**20
        self._cache: OrderedDict[tuple[int, int], ClientMemory] = OrderedDict()
        self._cached_bytes = 0
        self._durable: dict[int, int] = {}
        self._superseded: set[int] = set()

    def load(self, client: int, round: int) -> ClientMemory:
        """Load the memory that a client wrote in a round; 0: an empty one."""
        if round == 0:
            return ClientMemory()
        key = (client, round)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        memory = ClientMemory(*load_tensors(self._file(client, round), checked=True))
        self._keep(key, memory)
        return memory

    def save(self, client: int, round: int, memory: ClientMemory) -> None:
        save_tensors(self._file(client, round), memory.state, memory.values, durable=False)
        self._keep((client, round), memory)

    def discard(self, client: int, round: int) -> None:
        """Delete the memory of a failed upload."""
        self._file(client, round).unlink(missing_ok=True)
        self._drop((client, round))

    def has(self, client: int, round: int) -> bool:
        """Whether `load` finds an undamaged memory."""
        try:
            self.load(client, round)
        except RunError:
            return False
        return True

    def check(self, rounds: Mapping[int, int]) -> None:
        """Read these memories, by client; a RunError names the first that is missing or damaged."""
        for client, written in rounds.items():
            load_tensors(self._file(client, written), checked=True)

    def forget(self, client: int, before: int) -> None:
        """Delete a client's memories of rounds before this one."""
        for old in self._rounds(client):
            if old < before:
                self.discard(client, old)

    def sync(self, rounds: Mapping[int, int]) -> None:
        """Flush the memories of a checkpoint to disk."""
        for client, written in rounds.items():
            if self._durable.get(client) != written:
                with open(self._file(client, written), "rb") as file:
                    os.fsync(file.fileno())
                self._superseded.add(client)
                self._durable[client] = written

    def prune(self, checkpoint: int) -> None:
        """Delete memories that neither the checkpoint of that round nor later rounds need."""
        for client in list(self._superseded):
            rounds = sorted(self._rounds(client))
            needed = [written for written in rounds if written <= checkpoint][-1:]
            needed += [written for written in rounds if written > checkpoint]
            for old in set(rounds) - set(needed):
                self._file(client, old).unlink(missing_ok=True)
            if len(needed) < 2:
                self._superseded.discard(client)

    def oldest(self, client: int) -> int:
        """The earliest round of this client's memories; 0 without memories."""
        return min(self._rounds(client), default=0)

    def rewind(self, checkpoint: int) -> None:
        """Delete memories that are newer than the checkpoint."""
        for client in self._clients():
            for written in self._rounds(client):
                if written > checkpoint:
                    self.discard(client, written)

    def _clients(self) -> Iterator[int]:
        for folder in self.folder.glob("*"):
            if folder.name.isdecimal() and folder.name.isascii():
                yield int(folder.name)

    def _file(self, client: int, round: int) -> Path:
        return self.folder / str(client) / f"round-{round:06d}.safetensors"

    def _rounds(self, client: int) -> list[int]:
        files = (self.folder / str(client)).glob("round-*.safetensors")
        return [int(match[1]) for match in (NAME.fullmatch(file.name) for file in files) if match]

    def _keep(self, key: tuple[int, int], memory: ClientMemory) -> None:
        for old in [held for held in self._cache if held[0] == key[0]]:
            self._drop(old)
        self._cache[key] = memory
        self._cached_bytes += _bytes(memory)
        while self._cached_bytes > self.limit and self._cache:
            self._drop(next(iter(self._cache)))

    def _drop(self, key: tuple[int, int]) -> None:
        memory = self._cache.pop(key, None)
        if memory is not None:
            self._cached_bytes -= _bytes(memory)


def _bytes(memory: ClientMemory) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in memory.state.values())
