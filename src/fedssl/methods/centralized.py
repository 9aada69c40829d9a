"""Training on all images in one place: the reference for federated methods."""

from __future__ import annotations

from typing import ClassVar

from fedssl.methods.method import Method


class Centralized(Method):
    """One client holds the images of all, and trains for as many rounds and epochs as they would."""

    pools_data: ClassVar[bool] = True
