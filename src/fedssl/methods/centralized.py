"""Training on all images in one place: the reference for federated methods."""

from __future__ import annotations

from typing import ClassVar

from fedssl.methods.method import Method


class Centralized(Method):
    """A single client has all images, and trains for the same number of rounds and epochs."""

    pools_data: ClassVar[bool] = True
