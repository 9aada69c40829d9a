"""Load an exported encoder without fedssl: this file needs torch and timm only, so copy it where you like.

encoder = rebuild(json.load(open("encoder.json")))
encoder.load_state_dict(safetensors.torch.load_file("encoder.safetensors"))
"""

import importlib
from typing import Any

from torch import nn


def rebuild(description: dict[str, Any]) -> nn.Module:
    """The encoder that `encoder.json` describes, not yet with its weights."""

    def named(path: str) -> Any:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)

    def values(given: dict[str, Any]) -> dict[str, Any]:
        return {k: named(v["import"]) if isinstance(v, dict) else v for k, v in given.items()}

    encoder: nn.Module = named(description["factory"])(**values(description["kwargs"]))
    for change in description["changes"]:
        parent, _, name = change["module"].rpartition(".")
        if "replace" in change:
            new = named(change["replace"])(**values(change["kwargs"]))
            setattr(encoder.get_submodule(parent), name, new)
        for key, value in change.get("set", {}).items():
            setattr(encoder.get_submodule(change["module"]), key, value)
    return encoder
