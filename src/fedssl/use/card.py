"""The model card of an exported network: architecture, training data, evaluation and limitations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedssl._version import __version__
from fedssl.config import Config
from fedssl.privacy.protector import is_secret
from fedssl.rundir import RunDir
from fedssl.use.trained import Trained


def card(source: Path, trained: Trained, file: Path) -> str:
    """Return Markdown with the header that model hubs read."""
    known = source / "classifier.json"
    run = Path(json.loads(known.read_text(encoding="utf-8"))["run"]) if known.exists() else source
    directory = RunDir.open(run)
    config = directory.config()
    parts = [
        _header(config, bool(trained.description.get("classes"))),
        f"# {file.stem}",
        _what(config, trained, len(directory.metrics())),
        _use(trained, file),
        f"## Trained on\n\n{_data(config, directory)}",
        f"## Evaluation\n\n{_probes(directory, trained)}",
        f"## Limits\n\n{_limits(config, trained, directory)}",
        f"## Configuration\n\nfedssl {__version__}; the whole configuration:\n\n```json\n"
        f"{json.dumps(config.to_dict(), indent=2)}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _header(config: Config, classifier: bool) -> str:
    task = "image-classification" if classifier else "image-feature-extraction"
    tags = ["federated-learning", "self-supervised-learning", config.objective.name, config.method.name]
    listed = "\n".join(f"- {tag}" for tag in tags)
    return f"---\nlibrary_name: timm\npipeline_tag: {task}\ntags:\n{listed}\n---"


def _what(config: Config, trained: Trained, rounds: int) -> str:
    height, width, channels = trained.shape
    classes = trained.description.get("classes")
    labels = "with" if config.objective.needs_labels else "without"
    head = f", with a classifier of {len(classes)} classes on top" if classes else ""
    name = config.objective.own_encoder or config.model.encoder
    holders = "clients" if config.engine.sees_clients else "sites"
    return (
        f"An image encoder ({name}, {trained.features} features, for {channels}-channel "
        f"images of {height}×{width}){head}. It was trained {labels} labels "
        f"by {config.objective.name} on the images of several {holders}, which were not shared; "
        f"{config.method.name} combined the weights in {rounds} rounds."
    )


RESIZE = {
    "squash": "Images are resized as a whole: those that are not square change their aspect ratio.",
    "crop": "Images that are not square are cropped to their largest central square.",
}


def _use(trained: Trained, file: Path) -> str:
    given = input_of(trained)
    rows = [f"| {name} | {value} |" for name, value in given.items()]
    table = "\n".join(["| input | |", "|---|---|", *rows, "", RESIZE[given["resize"]]])
    if file.suffix == ".onnx":
        return (
            "## Use\n\n```python\nimport numpy, onnxruntime\n\n"
            f'session = onnxruntime.InferenceSession("{file.name}")\n'
            '(output,) = session.run(None, {"pixels": pixels})\n'
            "session.get_modelmeta().custom_metadata_map  # the table below, and class names\n```\n\n"
            f"{table}\n\nThe file normalizes pixels itself: do not subtract the mean before."
        )
    return (
        "## Use\n\nThe Python file next to this one registers it with timm and explains how to load it.\n\n"
        f"{table}\n\nSubtract the mean and divide by the standard deviation before the network."
    )


def input_of(trained: Trained) -> dict[str, str]:
    """Describe the preprocessing that the network was trained with."""
    given = trained.description["input"]
    (height, width), channels = given["size"], given["channels"]
    window = {"pixel values at 0 and 1": json.dumps(given["window"])} if "window" in given else {}
    return {
        "layout": f"float32 [N, {channels}, {height}, {width}]",
        "channel order": str(given.get("order", {1: "grey", 3: "RGB"}.get(channels, f"{channels} channels"))),
        "range": "0 to 1",
        **window,
        "mean": json.dumps(given["mean"]),
        "std": json.dumps(given["std"]),
        "size": f"{height}x{width}",
        "resize": str(given.get("resize", "squash")),
        "interpolation": str(given.get("interpolation", "bilinear")),
        "antialias": "yes" if given.get("antialias", True) else "no",
    }


def _data(config: Config, directory: RunDir) -> str:
    if not config.engine.sees_clients:
        return _data_at_sites(config, directory)
    partition = directory.partition()
    sizes, distance = partition["sizes"], partition["earth_movers_distance"]
    text = (
        f"{sum(sizes):,} images of `{config.data.name}`, held by {len(sizes)} clients "
        f"({min(sizes):,} to {max(sizes):,} each; partition `{config.partition.scheme}`"
    )
    return text + (")." if distance is None else f", {distance:.2f} from IID on a scale from 0 to 1).")


def _data_at_sites(config: Config, directory: RunDir) -> str:
    """Describe the images of a deployment, with the numbers that sites reported."""
    sites: tuple[str, ...] = getattr(config.engine, "sites", ())
    sizes = directory.client_sizes()
    rounds = [{client["client"] for client in line["clients"]} for line in directory.metrics()]
    lines = ["| site | images | rounds |", "|---|---|---|"]
    for number, name in enumerate(sites):
        images = f"{sizes[number]:,}" if number < len(sizes) and sizes[number] else "did not take part"
        lines.append(f"| {name} | {images} | {sum(number in clients for clients in rounds)} |")
    shape = f"{config.data.size}×{config.data.size} pixels, {config.data.channels} channels"
    return f"{sum(sizes):,} images of {len(sites)} sites, which keep them ({shape}).\n\n" + "\n".join(lines)


def _probes(directory: RunDir, trained: Trained) -> str:
    result = directory.result() if directory.result_file.exists() else {}
    rows: list[dict[str, Any]] = result.get("probes", [])
    lines = ["| probe | encoder | images | accuracy | untrained |", "|---|---|---|---|---|"]
    lines += [
        f"| {row['protocol']} | {row['model']} | {row['images']} "
        f"| {100 * row['accuracy']:.1f}{_spread(row)} % | {100 * row['untrained']:.1f} % |"
        for row in rows
    ]
    why = result.get("why_no_probes") or "no probe was configured"
    found = "\n".join(lines) if rows else f"It was not probed: {why}."
    scores = trained.description.get("scores")
    if scores:
        found += (
            f"\n\nThe classifier: {100 * scores['accuracy']:.1f} % of {scores['images']} held-out images "
            f"({100 * scores['encoder_untrained']:.1f} % with the same classifier on the untrained encoder)."
        )
    return found


def _spread(row: dict[str, Any]) -> str:
    """Format ± the standard deviation over sites, for probes at sites."""
    return "" if row.get("spread") is None else f" ± {100 * row['spread']:.1f}"


def _limits(config: Config, trained: Trained, directory: RunDir) -> str:
    height, width, _ = trained.shape
    return (
        f"- It was trained only on images of {height}×{width} pixels like those above.\n"
        "- The accuracies hold for the images named next to them. They may be lower on other images.\n"
        f"- Images stayed with their owners, but weights trained on them can reveal information about "
        f"them; {describe_protection(config, directory)}.\n"
        "- fedssl does not know the licenses of the training images: state them before you publish it."
    )


def describe_protection(config: Config, directory: RunDir) -> str:
    """Describe the formal privacy guarantee of a run."""
    spent = [line["epsilon"] for line in directory.metrics() if "epsilon" in line]
    if not spent or not is_secret(config):
        return "no formal privacy guarantee (such as differential privacy) is made"
    whose = "a client" if config.privacy.by_client else "a single image"
    bound = f"ε = {spent[-1]:.3g}, δ = {config.privacy.delta:g}"
    return f"what they reveal about {whose} is bounded by differential privacy with {bound}"
