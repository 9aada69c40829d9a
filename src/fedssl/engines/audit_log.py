"""RUN/audit.jsonl: connections, refusals and aggregations; `fedssl audit-log verify` checks it.

Every entry contains its own hash and that of the entry before it, so that changed, removed and inserted
entries are detected. Somebody with write access can also write a new chain. To detect that, keep the last
hash elsewhere and pass it to `verify --head`.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from fedssl.errors import RunError

if TYPE_CHECKING:
    from fedssl.engines.round_report import RoundReport
    from fedssl.state import ServerState

FIRST = "0" * 64  # what the first entry follows
NAME = "audit.jsonl"
TAIL = 1 << 20  # bytes from the end of the file that are searched for the last entry


class AuditLog:
    """The audit log of a run; several processes may append to it.

    Args:
        folder: the run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / NAME
        self._lock = FileLock(folder / f".{NAME}.lock")

    def append(self, event: str, **values: Any) -> str:
        """Append one entry and flush it to disk; returns its hash."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self._lock, open(self.file, "a+b") as file:
            last, cut = _tail(file)
            if cut:  # its writer was killed
                last = _write(file, last, {"event": "cut", "bytes": cut})
            head = _write(file, last, {"event": event, **values})
            file.flush()
            os.fsync(file.fileno())
        return str(head["hash"])

    def note_start(self, config: Path, round: int) -> None:
        """Log that a run is started or continued after this round."""
        self.append("started", round=round, config=hashlib.sha256(config.read_bytes()).hexdigest())

    def note_round(self, report: RoundReport, server: ServerState, names: Sequence[str]) -> None:
        """Log the uploads of a round, failures with their reasons, and the resulting global models.

        Args:
            report: the round.
            server: the server after it.
            names: names of the clients, if any.
        """
        from fedssl.state import digest  # PyTorch, which the process with the gate does without

        uploads = [
            {
                "client": names[outcome.client] if names else outcome.client,
                **({"images": outcome.upload.num_samples} if outcome.upload else {}),
                **({"sha256": outcome.digest} if outcome.digest else {}),
                **({"refused" if outcome.digest else "failed": outcome.failure} if outcome.failure else {}),
            }
            for outcome in report.outcomes
        ]
        models = [digest(state) for state in server.states]
        self.append("aggregated", round=report.round, uploads=uploads, models=models)


@dataclass(frozen=True)
class Verified:
    """The summary of a valid audit log."""

    entries: int
    first: str  # time of the first entry
    last: str
    head: str  # hash of the last entry
    models: dict[int, list[str]]  # hashes of the global models by round


def verify(folder: Path, head: str = "") -> Verified:
    """Check all entries of a run's audit log.

    Args:
        folder: the run's folder.
        head: an earlier last hash, which must still be in the chain.

    Raises:
        RunError: the log was changed; says at which line.
    """
    file = folder / NAME
    if not file.exists():
        raise RunError(f"{folder} has no audit log: it is written by `fedssl server`, or with log.audit=true")
    previous: Mapping[str, Any] = {"n": 0, "hash": FIRST}
    first, models, found = "", dict[int, list[str]](), not head
    with open(file, "rb") as lines:
        for number, line in enumerate(lines, 1):
            entry = _entry(line)
            problem = _broken(entry, previous)
            if problem:
                raise RunError(f"{file}, line {number}: {problem}")
            assert entry is not None
            previous, first = entry, first or entry["time"]
            found = found or entry["hash"] == head
            if entry["event"] == "aggregated":
                models[int(entry["round"])] = list(entry["models"])
    if not previous["n"]:
        raise RunError(f"{file} is empty")
    if not found:
        raise RunError(f"{file}: no entry has the hash {head}: the log was rewritten, or cut off before it")
    return Verified(previous["n"], first, previous["time"], previous["hash"], models)


def _broken(entry: Mapping[str, Any] | None, previous: Mapping[str, Any]) -> str:
    """The problem of an entry that follows another; empty if it is valid."""
    if entry is None:
        return "this is not a complete entry"
    if entry.get("hash") != _hash(entry):
        return "this entry was changed"
    if entry["previous"] != previous["hash"] or entry["n"] != previous["n"] + 1:
        return "entries before this one were removed, changed or inserted"
    return ""


def _write(file: Any, last: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    entry = {"n": last["n"] + 1, "time": now, **values, "previous": last["hash"]}
    entry["hash"] = _hash(entry)
    file.write(json.dumps(entry).encode() + b"\n")
    return entry


def _tail(file: Any) -> tuple[Mapping[str, Any], int]:
    """Find the last complete entry, and the length of a truncated entry after it, which is removed."""
    size = file.seek(0, os.SEEK_END)
    start = max(0, size - TAIL)
    file.seek(start)
    content = file.read()
    whole = content.rfind(b"\n") + 1
    cut = len(content) - whole
    if cut:
        file.truncate(start + whole)
    lines = content[:whole].splitlines()
    last = _entry(lines[-1]) if lines else None
    if lines and (last is None or "hash" not in last or not isinstance(last.get("n"), int)):
        last = {"n": 0, "hash": FIRST}  # damaged: `verify` finds the place, and nothing is lost meanwhile
    return last or {"n": 0, "hash": FIRST}, cut


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _hash(entry: Mapping[str, Any]) -> str:
    content = {key: value for key, value in entry.items() if key != "hash"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
