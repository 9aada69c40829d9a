"""The tensors that a client sends to the server, and those that stay on the client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedssl.models.model import Model

if TYPE_CHECKING:
    from fedssl.methods.method import Method


@dataclass(frozen=True)
class Boundary:
    """The tensors of a run by location. Only this class deals with private normalization layers
    and frozen tensors.

    Attributes:
        travels: what a method shares, without private normalization layers.
        stays: what a method keeps, with private normalization layers.
        private_norm: tensors of normalization layers that a method shares but that stay on the client.
        frozen: tensors that never change, which are neither sent nor stored.
    """

    travels: list[str]
    stays: list[str]
    private_norm: list[str]
    frozen: list[str]

    @classmethod
    def of(cls, method: Method, model: Model) -> Boundary:
        """The boundary of a method's clients. Normalization layers are found by module type."""
        sources = model.sources() if model.frozen else {}
        frozen = [name for name in model.state_dict() if _first_source(name, sources) in model.frozen]
        still = set(frozen)
        shares = [name for name in method.shares(model) if name not in still]
        keeps = [name for name in method.keeps(model) if name not in still]
        shared = set(shares) if method.private_norm else set()
        norm = [name for name in model.normalization_names() if name in shared]
        private = set(norm)
        return cls(
            travels=[name for name in shares if name not in private],
            stays=list(dict.fromkeys([*keeps, *norm])),
            private_norm=norm,
            frozen=frozen,
        )


def _first_source(name: str, sources: Mapping[str, str]) -> str:
    """The tensor that this one is ultimately a copy of (a target's source); else the tensor itself."""
    while name in sources:
        name = sources[name]
    return name
