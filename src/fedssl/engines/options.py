"""Config sections `participation`, `wire` and `checkpoint`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedssl.options import Options


class ParticipationConfig(Options):
    per_round: int | float = Field(1.0, gt=0, description="clients per round: a count (5), or a share (0.25)")
    max_clients: int = Field(0, ge=0, description="never more clients per round than this; 0: no limit")
    min_clients: int = Field(1, ge=1, description="fewer uploads than this stop the run (it can be resumed)")
    overshoot: float = Field(
        0.0,
        ge=0,
        description="clients asked beyond per_round, as a share of it; the first to be done count",
    )
    failure_rate: float = Field(
        0.0, ge=0, lt=1, description="simulated: chance that a client fails in a round"
    )
    timeout: float = Field(0.0, ge=0, description="seconds after which a client is too late; 0: never")
    max_change: float = Field(
        100.0,
        ge=0,
        description="an upload is refused if its distance from the global model is more than this many norms "
        "of that model and more than this many median distances of the others; 0: no limit (at servers of "
        "sites: 10)",
    )
    max_weight: float = Field(
        10.0,
        ge=0,
        description="a client counts for at most this many times the median number of images of the round's "
        "clients; 0: no limit",
    )
    clip: float = Field(
        0.0,
        ge=0,
        description="updates longer than this many median updates of the round are shortened; the server "
        "then holds all uploads of a round in memory; 0: never",
    )
    max_images: int = Field(
        0, ge=0, description="an upload is refused if its client claims to have more images; 0: no limit"
    )

    def size(self, clients: int) -> int:
        """How many of so many clients a round has, without those that are asked beyond them."""
        asked = self.per_round
        share = max(1, int(min(asked, 1.0) * clients + 0.5))  # half a client is one
        count = min(asked, clients) if isinstance(asked, int) else share
        return min(count, self.max_clients or count)


class WireConfig(Options):
    """What travels between server and clients."""

    dtype: Literal["float32", "float16"] = Field(
        "float32", description="floating point numbers are rounded to this before they are sent"
    )
    max_mb: int = Field(2048, ge=1, description="longer messages are refused unread")


class CheckpointConfig(Options):
    every: int = Field(5, ge=1, description="rounds between checkpoints (and always at the end)")
    keep: int = Field(
        2,
        ge=0,
        description="checkpoints to keep, so that a run can go back if one is damaged; 0: all (trajectories "
        "need them)",
    )
