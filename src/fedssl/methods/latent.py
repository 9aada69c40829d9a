"""An objective's loss on features or projections instead of images, whatever the objective."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from fedssl.models.model import Model, Part


@contextmanager
def record_outputs(module: nn.Module) -> Iterator[list[Tensor]]:
    """What a module gives out meanwhile, call by call: an objective says itself how views go through."""
    outputs: list[Tensor] = []
    handle = module.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    try:
        yield outputs
    finally:
        handle.remove()


def replace_parts(model: Model, **instead: nn.Module) -> Model:
    """The objective's parts of a model, some of them replaced; the others are shared, not copied."""
    own = [name for name in model.roles if name not in model.added]
    return Model(**{name: Part(instead.get(name, model.part(name)), model.roles[name]) for name in own})
