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
    """Context manager in which every encoder of a model runs compiled, also a target's and a personal one.

    Only `forward` is replaced, and restored on exit. Copies made later are therefore plain modules, and
    hooks are called as usual.
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
