"""The releases of a client's training under example-level differential privacy."""

from __future__ import annotations

from fedssl.privacy.accountant import Release


def sampling(images: int, batch_size: int, epochs: float, noise: float) -> tuple[Release, int]:
    """The privacy cost of a client's step, and the number of its steps in a round.

    Args:
        images: of the client; each is drawn with the same probability in every step.
        batch_size: images of a step, on average.
        epochs: of a round.
        noise: noise multiplier.
    """
    rate = min(1.0, batch_size / images)
    return Release(rate, noise), max(1, round(epochs / rate))
