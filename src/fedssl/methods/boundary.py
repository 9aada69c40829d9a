"""What crosses the boundary between client and server, and what stays on the client's side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedssl.models.model import Model

if TYPE_CHECKING:
    from fedssl.methods.method import Method


@dataclass(frozen=True)
class Boundary:
    """The tensors of a run by where they are: the only place that knows of private normalisation layers.

    Attributes:
        travels: what a method shares, without private normalisation layers.
        stays: what a method keeps, with private normalisation layers.
        private_norm: tensors of normalisation layers that a method shares but that stay on the client.
    """

    travels: list[str]
    stays: list[str]
    private_norm: list[str]

    @classmethod
    def of(cls, method: Method, model: Model) -> Boundary:
        """The boundary of a method's clients. Normalisation layers are found by module type."""
        shares, keeps = method.shares(model), method.keeps(model)
        shared = set(shares) if method.private_norm else set()
        norm = [name for name in model.normalisation_names() if name in shared]
        private = set(norm)
        return cls(
            travels=[name for name in shares if name not in private],
            stays=list(dict.fromkeys([*keeps, *norm])),
            private_norm=norm,
        )
