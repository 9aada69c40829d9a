"""A model card: what an exported network is, what it was trained on, how good it is, and what it is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedssl._version import __version__
from fedssl.config import Config
from fedssl.rundir import RunDir
from fedssl.use.trained import Trained


def card(source: Path, trained: Trained, file: Path) -> str:
    """Markdown with the header that model hubs read."""
    known = source / "classifier.json"
    run = Path(json.loads(known.read_text(encoding="utf-8"))["run"]) if known.exists() else source
    directory = RunDir.open(run)
    config = directory.config()
    parts = [
        _header(config, bool(trained.description.get("classes"))),
        f"# {file.stem}",
        _what(config, trained),
        _use(trained, file),
        f"## Trained on\n\n{_data(config, directory)}",
        f"## How good it is\n\n{_probes(directory, trained)}",
        f"## Limits\n\n{_limits(config, trained)}",
        f"## Made with\n\nfedssl {__version__}; the whole configuration:\n\n```json\n"
        f"{json.dumps(config.to_dict(), indent=2)}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _header(config: Config, classifier: bool) -> str:
    task = "image-classification" if classifier else "image-feature-extraction"
    tags = ["federated-learning", "self-supervised-learning", config.objective.name, config.method.name]
    listed = "\n".join(f"- {tag}" for tag in tags)
    return f"---\nlibrary_name: timm\npipeline_tag: {task}\ntags:\n{listed}\n---"


def _what(config: Config, trained: Trained) -> str:
    height, width, channels = trained.shape
    classes = trained.description.get("classes")
    labels = "with" if config.objective.needs_labels else "without"
    head = f", with a classifier of {len(classes)} classes on top" if classes else ""
    name = config.objective.own_encoder or config.model.encoder
    return (
        f"An image encoder ({name}, {trained.features} features, for {channels}-channel "
        f"images of {height}×{width}){head}. It learned {labels} labels, by {config.objective.name}, on the "
        f"images of several clients; their images stayed with them, and {config.method.name} brought their "
        f"weights together in {config.rounds} rounds."
    )


def _use(trained: Trained, file: Path) -> str:
    given = trained.description["input"]
    if file.suffix == ".onnx":
        return (
            "## Use\n\n```python\nimport numpy, onnxruntime\n\n"
            f'session = onnxruntime.InferenceSession("{file.name}")\n'
            '(output,) = session.run(None, {"pixels": pixels})  # float32 '
            f"[N, {given['channels']}, {given['size'][0]}, {given['size'][1]}], in [0, 1]\n```\n\n"
            "Normalisation is part of the file."
        )
    return (
        "## Use\n\nThe file beside this one registers it with timm and says how to load it. Pixels in "
        f"[0, 1] are normalised with mean {given['mean']} and standard deviation {given['std']}."
    )


def _data(config: Config, directory: RunDir) -> str:
    partition = directory.partition()
    sizes, distance = partition["sizes"], partition["earth_movers_distance"]
    text = (
        f"{sum(sizes):,} images of `{config.data.name}`, held by {len(sizes)} clients "
        f"({min(sizes):,} to {max(sizes):,} each; partition `{config.partition.scheme}`"
    )
    return text + (")." if distance is None else f", {distance:.2f} from IID on a scale from 0 to 1).")


def _probes(directory: RunDir, trained: Trained) -> str:
    rows: list[dict[str, Any]] = directory.result()["probes"] if directory.result_file.exists() else []
    lines = ["| probe | encoder | images | accuracy | untrained |", "|---|---|---|---|---|"]
    lines += [
        f"| {row['protocol']} | {row['model']} | {row['images']} | {100 * row['accuracy']:.1f} % | "
        f"{100 * row['untrained']:.1f} % |"
        for row in rows
    ]
    found = "\n".join(lines) if rows else "It was not probed: the images had no labels."
    scores = trained.description.get("scores")
    if scores:
        found += (
            f"\n\nThe classifier: {100 * scores['accuracy']:.1f} % of {scores['images']} held-out images "
            f"({100 * scores['encoder_untrained']:.1f} % with the same classifier on the untrained encoder)."
        )
    return found


def _limits(config: Config, trained: Trained) -> str:
    height, width, _ = trained.shape
    return (
        f"- It has seen images of {height}×{width} pixels like those above, and nothing else.\n"
        "- Accuracies are those of the images named beside them. On others they may be lower: measure.\n"
        "- Images stayed with their owners, but weights that were trained on them can tell something about "
        "them; no formal privacy guarantee (such as differential privacy) is made.\n"
        "- The licences of the training images are not known to fedssl: state them before you publish it."
    )
