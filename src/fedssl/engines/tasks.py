"""What an engine asks of a client, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedssl.state import Broadcast, Upload

# What a client is asked in place of training: statistics of the model that it was sent, by what it normalises
# by meanwhile (see `recalibration`), or probes on its own labels: the kNN monitor, or all of a run's end.
Measure = Literal["", "by-batch", "by-statistics", "monitor", "probes"]


@dataclass(frozen=True)
class Task:
    """One client's part of one round."""

    round: int
    client: int
    broadcast: Broadcast
    memory_round: int = 0  # the round in which the client's memory was written; 0: it has none
    spare: bool = False  # its upload is needed only if another one fails to come
    threads: int = 0  # to train with; 0: as many as the process has
    turn: int = 0  # where several clients train at once, those of lower turns begin before
    measure: Measure = ""  # in place of training


@dataclass(frozen=True)
class Question:
    """What a client is asked after it has trained: one exchange of secure aggregation."""

    round: int
    client: int
    stage: str
    data: bytes


@dataclass
class Outcome:
    """An upload, or the reason why the client failed."""

    client: int
    upload: Upload | None = None
    failure: str = ""
    views: int = 0
    seconds: float = 0.0
    remembers: bool = False  # whether the client wrote a memory in this round
    digest: str = ""  # of the upload as it came in, for the audit log
