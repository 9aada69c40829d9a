"""Load an exported encoder without fedssl: this file needs torch and timm only, so copy it where you like.

encoder = rebuild(json.load(open("encoder.json")))
encoder.load_state_dict(safetensors.torch.load_file("encoder.safetensors"))
"""

import importlib
from typing import Any

from torch import nn


def rebuild(description: dict[str, Any]) -> nn.Module:
    """Build the encoder that `encoder.json` describes, without its weights."""

    def named(path: str) -> Any:  # networks of timm, PyTorch and fedssl, and no other code
        module, _, name = path.rpartition(".")
        known = module.split(".")[0] in ("timm", "torch", "fedssl")
        found = getattr(importlib.import_module(module), name) if known else None
        if path != "timm.create_model" and not (isinstance(found, type) and issubclass(found, nn.Module)):
            raise ValueError(f"{path} is not a network of timm, PyTorch or fedssl")
        return found

    def values(given: dict[str, Any]) -> dict[str, Any]:
        if any(given.get(key) for key in ("pretrained", "checkpoint_path", "pretrained_cfg")):
            raise ValueError("weights are in encoder.safetensors, not in a file that encoder.json names")
        return {k: named(v["import"]) if isinstance(v, dict) else v for k, v in given.items()}

    encoder: nn.Module = named(description["factory"])(**values(description["kwargs"]))
    for change in description["changes"]:
        parent, _, name = change["module"].rpartition(".")
        if "replace" in change:
            setattr(encoder.get_submodule(parent), name, named(change["replace"])(**values(change["kwargs"])))
        for key, value in change.get("set", {}).items():
            setattr(encoder.get_submodule(change["module"]), key, value)
    return encoder
