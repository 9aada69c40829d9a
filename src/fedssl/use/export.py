"""Export an encoder or classifier: safetensors for timm, ONNX for other programs."""

from __future__ import annotations

import inspect
import json
import keyword
import re
import warnings
from pathlib import Path

import numpy as np
import torch

from fedssl._version import __version__
from fedssl.errors import ConfigError, RunError, did_you_mean
from fedssl.models import rebuild as rebuilding
from fedssl.storage import write_atomic, write_text
from fedssl.use.card import card, input_of
from fedssl.use.classifier import load_network
from fedssl.use.trained import Trained

FORMATS = ("safetensors", "onnx")
TOLERANCE = 1e-4


def export(source: str | Path, to: str, file: str | Path) -> list[Path]:
    """Write the network of a run or of `fedssl finetune`, its model card, and code to load it."""
    if to not in FORMATS:
        raise ConfigError(f"unknown format {to!r}: {did_you_mean(to, FORMATS)}")
    path = Path(file)
    path = path if path.suffix == f".{to}" else path.with_name(f"{path.name}.{to}")
    trained = load_network(source, "cpu")
    written = _safetensors(trained, path) if to == "safetensors" else _onnx(trained, path)
    page = path.with_suffix(".md")
    write_text(page, card(Path(source), trained, path))
    return [*written, page]


# --- timm -------------------------------------------------------------------------------------------

ENTRY = '''"""Registers the network of {file} with timm. It only needs {needs}.

    import sys; sys.path.insert(0, FOLDER)  # the folder of this file
    import {name}, timm
    network = timm.create_model("{name}", checkpoint_path="{file}").eval()

Input: float32 [N, {channels}, {height}, {width}], pixels in [0, 1], less {mean}, divided by {std}.
"""

import importlib
import json
from typing import Any

from timm.models import register_model
from torch import nn

DESCRIPTION = json.loads({description!r})


{rebuild}

@register_model
def {name}(pretrained: bool = False, **unused: Any) -> nn.Module:
    network = rebuild(DESCRIPTION)
    return {network}
'''


def _safetensors(trained: Trained, path: Path) -> list[Path]:
    from safetensors.torch import save_file

    state = {name: value.contiguous() for name, value in trained.network.network.state_dict().items()}
    write_atomic(path, lambda temporary: save_file(state, temporary, {"format": "pt"}))
    description, given = trained.description, trained.description["input"]
    classes = description.get("classes")
    head = (
        f"nn.Sequential(network, nn.Linear({description['features']}, {len(classes)}))"
        if classes
        else "network"
    )
    entry = path.with_name(f"{_name(path)}.py")
    write_text(
        entry,
        ENTRY.format(
            file=path.name,
            needs="torch, timm and fedssl" if description["library"] == "fedssl" else "torch and timm",
            name=_name(path),
            channels=given["channels"],
            height=given["size"][0],
            width=given["size"][1],
            mean=given["mean"],
            std=given["std"],
            description=json.dumps(description),
            rebuild=inspect.getsource(rebuilding.rebuild),
            network=head,
        ),
    )
    return [path, entry]


def _name(path: Path) -> str:
    """Convert a file name to a Python identifier."""
    name = re.sub(r"\W", "_", path.stem)
    return f"encoder_{name}" if not name.isidentifier() or keyword.iskeyword(name) else name


# --- ONNX -------------------------------------------------------------------------------------------


def _onnx(trained: Trained, path: Path) -> list[Path]:
    try:
        import onnx  # noqa: F401
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise RunError(
            f"export to ONNX needs the extra `onnx`: pip install 'fedssl[onnx]' ({error})"
        ) from None
    height, width, channels = trained.shape
    pixels = torch.rand(3, channels, height, width, generator=torch.Generator().manual_seed(0))
    output = "logits" if "classes" in trained.description else "features"

    def write(temporary: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about parts of PyTorch that exporting goes through
            torch.onnx.export(
                trained.network,
                (pixels,),
                str(temporary),
                input_names=["pixels"],
                output_names=[output],
                dynamic_shapes=({0: torch.export.Dim("images")},),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        session = onnxruntime.InferenceSession(str(temporary), providers=["CPUExecutionProvider"])
        for images in (pixels, pixels[:1]):
            (found,) = session.run([output], {"pixels": images.numpy()})
            expected = trained.network(images).numpy()
            if not np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE):
                worst = float(np.abs(found - expected).max())
                raise RunError(
                    f"the outputs of ONNX and PyTorch differ by up to {worst:.2g}: nothing was written"
                )

        _add_metadata(temporary, trained)

    write_atomic(path, write)
    return [path]


def _add_metadata(file: Path, trained: Trained) -> None:
    """Return preprocessing and class names as metadata of an ONNX file."""
    import onnx

    model = onnx.load(str(file))
    classes = trained.description.get("classes")
    about = {**input_of(trained), "normalisation": "part of the file", "made by": f"fedssl {__version__}"}
    if classes:
        about["classes"] = json.dumps(list(classes), ensure_ascii=False)
    for key, value in about.items():
        model.metadata_props.add(key=key.replace(" ", "_"), value=value)
    onnx.save(model, str(file))
