"""The report of a round, which becomes a line of metrics.jsonl."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedssl.engines.tasks import Outcome


@dataclass
class RoundReport:
    """The data of one line of metrics.jsonl."""

    round: int
    outcomes: list[Outcome] = field(default_factory=list)  # without the uploads' tensors
    values: dict[str, float] = field(default_factory=dict)  # numbers of the round as a whole
    unused: list[int] = field(default_factory=list)  # spare clients that were not needed
    absent: dict[int, str] = field(default_factory=dict)  # sites that could not be asked, and why
    seconds: float = 0.0
    hides_loss: bool = False
    withheld: bool = False  # whether the server learns nothing about individual clients (privacy)
    summed_views: int = 0  # if clients do not report theirs one by one
    stop: str = ""  # why the run has to end with this round

    @property
    def views(self) -> int:
        return self.summed_views + sum(outcome.views for outcome in self.outcomes)

    def line(self) -> dict[str, Any]:
        """The line: round, clients with their numbers, failures, and means weighted by images."""
        done = [outcome for outcome in self.outcomes if outcome.upload is not None]
        clients, images = [], sum(outcome.upload.num_samples for outcome in done if outcome.upload)
        means: dict[str, float] = {}
        for outcome in done:
            assert outcome.upload is not None
            upload = outcome.upload
            if self.withheld:
                clients.append({"client": upload.client, **upload.values, "seconds": outcome.seconds})
                continue
            numbers = {**({} if self.hides_loss else {"loss": upload.loss}), **upload.values}
            clients.append(
                {"client": upload.client, "images": upload.num_samples, **numbers, "seconds": outcome.seconds}
            )
            for name in ("loss", "divergence", "drift", "layer_angle", "generator_ratio"):
                if name in numbers:
                    means[name] = means.get(name, 0.0) + numbers[name] * upload.num_samples / images
        for name in EQUAL:
            numbers_of = [client[name] for client in clients if name in client]
            if numbers_of:
                means[name] = sum(numbers_of) / len(numbers_of)
        absent = sorted(self.absent.items())
        failed = [{"client": o.client, "reason": o.failure} for o in self.outcomes if o.failure]
        return {
            "round": self.round,
            **means,
            **self.values,
            "views": self.views,
            "seconds": self.seconds,
            "clients": clients,
            "failed": failed,
            **({"unused": self.unused} if self.unused else {}),
            **({"absent": [{"client": c, "reason": why} for c, why in absent]} if absent else {}),
        }


# Numbers whose means over clients are unweighted (L-DAWA, Fig. 4), and shares of clients.
EQUAL = ("angle", "angle_weights", "angle_gamma", "angle_beta", "mu_capped", "predictor_replaced")
