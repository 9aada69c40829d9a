"""The tasks of clients and their outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedssl.state import Broadcast, Upload

# What a client measures instead of training: statistics of the received model, with the given normalization
# (see `recalibration`), or probes on its own labels: the kNN monitor, or all final probes.
Measure = Literal["", "by-batch", "by-statistics", "monitor", "probes"]


@dataclass(frozen=True)
class Task:
    """One client's part of one round."""

    round: int
    client: int
    broadcast: Broadcast
    memory_round: int = 0  # the round in which the client's memory was written; 0: it has none
    spare: bool = False  # its upload is only needed if another client fails
    threads: int = 0  # to train with; 0: as many as the process has
    turn: int = 0  # clients with lower turns start first
    measure: Measure = ""  # instead of training


@dataclass(frozen=True)
class Question:
    """One exchange of secure aggregation with a client that has trained."""

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
