"""`train.compile`: encoders through torch.compile while they train."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from weakref import WeakKeyDictionary

import torch
from torch import nn

from fedssl.models.model import Model

_compiled: WeakKeyDictionary[nn.Module, Callable[..., object]] = WeakKeyDictionary()


@contextmanager
def compile_encoders(model: Model) -> Iterator[None]:
    """Every encoder of a model (a target's and a personal one, too) runs compiled meanwhile.

    Only for a while, and only `forward`: a copy made later is a plain module again and no alias of this
    one, and hooks around `forward` are called as ever.
    """
    with ExitStack() as stack:
        for path, module in model.named_modules():
            if path.rpartition(".")[2] == "encoder":
                if module not in _compiled:
                    _compiled[module] = compile_function(type(module).forward)
                vars(module)["forward"] = partial(_compiled[module], module)
                stack.callback(vars(module).pop, "forward")
        yield


def compile_function(function: Callable[..., object]) -> Callable[..., object]:
    return torch.compile(function)
