"""A client's network: named parts, each of which is shared, private or derived."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from torch import Tensor, nn

# Layers whose parameters and statistics are "BatchNorm" to the papers: found by type, never by name.
NORMALIZATION = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
# The files of timm that define only such layers. (Checking for the types themselves would import timm.)
TIMM_NORMALIZATION = frozenset(
    f"timm.layers.{file}" for file in ("norm", "norm_act", "evo_norm", "filter_response_norm", "grn")
)


def is_normalization(module: nn.Module) -> bool:
    """Whether a module is a normalization layer, by its type."""
    return isinstance(module, NORMALIZATION) or any(
        kind.__module__ in TIMM_NORMALIZATION for kind in type(module).__mro__
    )


class Role(Enum):
    """Where the tensors of a part are stored."""

    SHARED = "shared"  # may leave the client
    PRIVATE = "private"  # stays with the client from round to round
    DERIVED = "derived"  # recomputed from the rest; neither sent nor stored


@dataclass(frozen=True)
class Part:
    """One top-level module of a model, and its role."""

    module: nn.Module
    role: Role = Role.SHARED
    copy_of: tuple[str, ...] = ()  # parts that a client without memory copies it from


class Model(nn.Module):
    """A network of named parts. Tensor names are module paths: `encoder.stem.conv.weight`."""

    def __init__(self, **parts: Part) -> None:
        super().__init__()
        self.roles: dict[str, Role] = {}
        self.copies: dict[str, tuple[str, ...]] = {}
        for name, part in parts.items():
            self.add(name, part)
        self.added: set[str] = set()
        self.frozen: frozenset[str] = frozenset()  # tensors that stay at their initial values everywhere

    def add(self, name: str, part: Part) -> None:
        self.add_module(name, part.module)
        self.roles[name] = part.role
        if part.copy_of:
            self.copies[name] = part.copy_of

    def extend(self, parts: Mapping[str, Part]) -> None:
        """Add the parts of a federated method to those of the objective."""
        for name, part in parts.items():
            if name in self.roles:
                raise ValueError(f"the model has a part {name!r} already")
            self.add(name, part)
            self.added.add(name)

    def part(self, name: str) -> nn.Module:
        return self.get_submodule(name)

    def has(self, name: str) -> bool:
        return name in self.roles

    def names(self, role: Role) -> list[str]:
        """Tensors (parameters and buffers) of all parts with this role."""
        return self.names_under(part for part, own in self.roles.items() if own is role)

    def names_under(self, paths: Iterable[str]) -> list[str]:
        """Tensors below these module paths, in the order of the state dict."""
        prefixes = tuple(f"{path}." for path in paths)
        return [name for name in self.state_dict() if name.startswith(prefixes)]

    def parameters_under(self, paths: Iterable[str]) -> dict[str, Tensor]:
        """Parameters (no buffers) below these module paths."""
        prefixes = tuple(f"{path}." for path in paths)
        return {name: value for name, value in self.named_parameters() if name.startswith(prefixes)}

    def normalization_names(self) -> list[str]:
        """Parameters and statistics of every normalization layer, found by module type."""
        paths = [path for path, module in self.named_modules() if is_normalization(module)]
        return self.names_under(paths)

    def statistics(self) -> frozenset[str]:
        """Running statistics of normalization layers: buffers, found by module type."""
        buffers = {name for name, _ in self.named_buffers()}
        return frozenset(name for name in self.normalization_names() if name in buffers)

    def kinds(self) -> dict[str, str]:
        """The kind of every parameter: `weights`, `gamma` (of a normalization layer) or `beta` (any bias)."""
        found = {}
        for path, module in self.named_modules():
            rest = "gamma" if is_normalization(module) else "weights"
            for name, _ in module.named_parameters(prefix=path, recurse=False):
                found[name] = "beta" if name.endswith("bias") else rest
        return found

    def variances(self) -> frozenset[str]:
        """Running variances of normalization layers, found by module type: they cannot be negative."""
        return frozenset(
            f"{path}.running_var"
            for path, module in self.named_modules()
            if is_normalization(module) and isinstance(getattr(module, "running_var", None), Tensor)
        )

    def sources(self) -> dict[str, str]:
        """For every tensor of a copied part, the name of the tensor it is a copy of.

        `target` with `copy_of=("encoder", "projector")` holds `target.encoder.…`, `target.projector.…`;
        a copy of a whole model holds copies of copies (`personal.target.encoder.…`).
        """
        return {f"{part}.{name}": name for part in self.copies for name in self.part(part).state_dict()}
