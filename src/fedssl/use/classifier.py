"""A classifier on top of an encoder, stored in a folder: classifier.safetensors, classifier.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedssl.errors import RunError
from fedssl.models.describe import rebuild
from fedssl.storage import write_json
from fedssl.tensorfile import load_tensors, save_tensors
from fedssl.use.trained import Trained, load_trained, ready


def on_top(encoder: nn.Module, weight: Tensor, bias: Tensor) -> nn.Sequential:
    """Combine the encoder with a linear layer of these weights."""
    head = nn.Linear(weight.shape[1], weight.shape[0])
    head.load_state_dict({"weight": weight.float(), "bias": bias.float()})
    return nn.Sequential(encoder, head)


def save_classifier(folder: Path, network: nn.Module, description: dict[str, Any]) -> None:
    save_tensors(folder / "classifier.safetensors", network.state_dict(), {"format": "pt"})
    write_json(folder / "classifier.json", description)


def load_network(source: str | Path, device: str = "auto") -> Trained:
    """Load the classifier in a folder that `fedssl finetune` wrote, or the encoder of a run."""
    folder = Path(source)
    if not (folder / "classifier.json").exists():
        return load_trained(source, device)
    try:
        description = json.loads((folder / "classifier.json").read_text(encoding="utf-8"))
        network = nn.Sequential(
            rebuild(description), nn.Linear(description["features"], len(description["classes"]))
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{folder}/classifier.json cannot be used: {error}") from None
    network.load_state_dict(load_tensors(folder / "classifier.safetensors")[0])
    return ready(network, description, device)
