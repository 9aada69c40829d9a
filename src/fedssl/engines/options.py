"""Config sections `participation`, `wire` and `checkpoint`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedssl.options import Options


class ParticipationConfig(Options):
    per_round: int | float = Field(1.0, gt=0, description="clients per round: a number (5) or a share (0.25)")
    max_clients: int = Field(0, ge=0, description="largest number of clients per round; 0: no limit")
    min_clients: int = Field(
        1, ge=1, description="smallest number of uploads in a round; with fewer, the run stops"
    )
    overshoot: float = Field(
        0.0,
        ge=0,
        le=100,
        description="spare clients per round, as a share of per_round; the first uploads are used",
    )
    failure_rate: float = Field(
        0.0, ge=0, lt=1, description="simulated probability that a client fails in a round"
    )
    timeout: float = Field(0.0, ge=0, le=1e08, description="seconds until a client times out; 0: never")
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
        0, ge=0, description="largest number of images that a client may report; 0: no limit"
    )

    def size(self, clients: int) -> int:
        """The number of clients in a round, without spare ones, if there are `clients` in total."""
        wanted = self.per_round
        share = max(1, int(min(wanted, 1.0) * clients + 0.5))  # half a client is rounded up
        count = min(wanted, clients) if isinstance(wanted, int) else share
        return min(count, self.max_clients or count)


class WireConfig(Options):
    """Messages between server and clients."""

    dtype: Literal["float32", "float16"] = Field(
        "float32", description="type of floating-point numbers in messages"
    )
    max_mb: int = Field(
        2048, ge=1, le=1 << 20, description="largest message in MB; longer ones are refused unread"
    )


class CheckpointConfig(Options):
    every: int = Field(5, ge=1, description="rounds between checkpoints; the last round always has one")
    keep: int = Field(
        2, ge=0, description="number of checkpoints to keep; 0: all, for trajectories of the global model"
    )
