"""Computing any objective's loss on features or projections instead of images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from fedssl.models.model import Model, Part


@contextmanager
def record_outputs(module: nn.Module) -> Iterator[list[Tensor]]:
    """Context manager that collects the outputs of a module, call by call."""
    outputs: list[Tensor] = []
    handle = module.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    try:
        yield outputs
    finally:
        handle.remove()


def replace_parts(model: Model, **instead: nn.Module) -> Model:
    """A model of the objective's parts with some of them replaced; the others are shared, not copied."""
    own = [name for name in model.roles if name not in model.added]
    return Model(**{name: Part(instead.get(name, model.part(name)), model.roles[name]) for name in own})
