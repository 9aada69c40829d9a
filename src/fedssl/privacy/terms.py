"""What server and clients agree on: the tensors that are summed, their grids, and the noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedssl.aggregation.fedavg import FedAvg
from fedssl.aggregation.l_dawa_fedavg import LDawaFedAvg
from fedssl.aggregation.scaled_sum import ScaledSum
from fedssl.privacy.accountant import Release
from fedssl.privacy.grid import Floats, Grid, Words
from fedssl.privacy.layout import Layout
from fedssl.privacy.options import PrivacyConfig

CLIP = "privacy/clip"  # the norm in force, among the numbers of the server and of broadcasts
ROOM = 10.0  # standard deviations of the noise that fit next to the sum
IMAGES = 1 << 20  # masses are in units of this many images, unless participation.max_images is smaller
LARGEST_MASS = 1024.0  # of other masses
# Values that are summed with the tensors, so that the server learns only their means.
REPORTED = ("images", "views", "loss", "divergence", "drift")
LARGEST_REPORTED = float(1 << 20)
LEARNING_RATE = 0.2  # of the clipping norm's logarithm (Andrew et al. 2021, §3)


@dataclass(frozen=True)
class Terms:
    """The terms of a run.

    Attributes:
        privacy: the config section.
        layout: the tensors that are summed.
        clients: number of clients.
        per_round: clients of a round; on average, where they are sampled one by one.
        max_images: `participation.max_images`.
    """

    privacy: PrivacyConfig
    layout: Layout
    clients: int
    per_round: int
    max_images: int = 0

    # --- client-level differential privacy ----------------------------------------------------

    @property
    def rate(self) -> float:
        """Probability that a client takes part in a round."""
        return self.per_round / self.clients

    @property
    def release(self) -> Release:
        """The privacy cost of a round. With adaptive clipping it is the cost of both noisy sums together."""
        return Release(self.rate, self.privacy.noise)

    @property
    def quantile_noise(self) -> float:
        """Standard deviation of the noise on the number of clients whose norm is below the clipping norm."""
        return max(self.per_round / 20, self.privacy.noise) if self.privacy.quantile else 0.0

    @property
    def update_noise(self) -> float:
        """Noise multiplier of the sum of updates.

        Adding or removing a client changes the sum by at most `clip`, and the count, in which it is ±½, by ½.
        Together, two Gaussian mechanisms with multipliers a and b are one with multiplier
        (a⁻² + b⁻²)^(−½). For this to be `privacy.noise` with b = 2·quantile_noise, a has to be larger
        (Andrew et al. 2021, Theorem 1).
        """
        noise = self.privacy.noise
        if not self.privacy.quantile:
            return noise
        return 1 / math.sqrt(noise**-2 - (2 * self.quantile_noise) ** -2)

    def clip(self, values: Mapping[str, float]) -> float:
        """The clipping norm among the numbers of the server or of a broadcast."""
        return values.get(CLIP, self.privacy.clip)

    def next_clip(self, clip: float, within: float) -> float:
        """The clipping norm after a round.

        Args:
            clip: the norm of the round.
            within: noisy sum over clients of +½ where the norm of the update was below `clip`, else −½.
        """
        share = within / self.per_round + 0.5
        return clip * math.exp(-LEARNING_RATE * (share - self.privacy.quantile))

    # --- grids --------------------------------------------------------------------------------

    @property
    def most(self) -> int:
        """The largest number of clients whose integers are summed."""
        return self.clients if self.privacy.by_client else self.per_round

    def grid(self, clip: float) -> Grid:
        """The grid of tensor values."""
        if not self.privacy.by_client:
            return Grid.fit(self.privacy.bound, self.most, self.privacy.bits)
        bits = self.privacy.bits if self.privacy.secure else 64
        return Grid.fit(clip, self.most, bits, ROOM * self.update_noise * clip)

    def number_grids(self) -> list[Grid]:
        """The grids of the numbers next to the tensors, in order."""
        if self.privacy.by_client:
            quantile = Grid.fit(0.5, self.most, 64, ROOM * self.quantile_noise)
            return [quantile] if self.privacy.quantile else []
        masses = Grid.fit(LARGEST_MASS, self.most, 64)
        return [masses] * len(self.layout.shapes) + [Grid.fit(LARGEST_REPORTED, self.most, 64)] * len(
            REPORTED
        )

    def encode_numbers(self, values: Floats) -> Words:
        grids = self.number_grids()
        parts = [grid.encode(values[i : i + 1]) for i, grid in enumerate(grids)]
        return np.concatenate([np.zeros(0, dtype="<u8"), *parts])

    def decode_numbers(self, words: Words) -> Floats:
        parts = [grid.decode(words[i : i + 1]) for i, grid in enumerate(self.number_grids())]
        return np.concatenate([np.zeros(0), *parts])

    # --- masses -------------------------------------------------------------------------------

    @property
    def images(self) -> float:
        """The number of images that masses are measured in."""
        return float(self.max_images or IMAGES)

    def units(self, rule: ScaledSum) -> dict[str, float]:
        """The unit of the masses of each tensor, such that they are at most about 1.

        Args:
            rule: the rule in force in the round.
        """
        by_samples = isinstance(rule, FedAvg | LDawaFedAvg)
        ruled = self.layout.shapes.keys() - (self.layout.statistics if rule.statistics != "scaled" else set())
        return {name: 1.0 if name in ruled and not by_samples else self.images for name in self.layout.shapes}

    def rule_at(self, rule: ScaledSum, round: int) -> ScaledSum:
        """The rule in force in a round. Noise is added to moments, since it could make variances negative."""
        if self.privacy.by_client:
            rule = rule.model_copy(update={"statistics": "pooled"})
        return rule.at(round)
