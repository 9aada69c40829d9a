"""The page of a table: numbers, verdicts, out-of-date results, settings and cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedssl.config import flatten
from fedssl.report.console import duration
from fedssl.tables.cells import overlay, values_of
from fedssl.tables.markdown import BOUNDED, PUBLISHED, orderings, published, table
from fedssl.tables.results import Results


def markdown(results: Results, picture: str = "", pictures: str = "") -> str:
    """Return the whole page: title, table, orderings, and the settings needed to run it again.

    Args:
        results: the results of the table.
        picture: the file of the table's figure.
        pictures: a section with the pictures that runs made.
    """
    about = results.table
    parts = [
        f"# {heading(results)}",
        about.paper,
        f"{_size(results)}: mean ± standard deviation (seeds). {units(results)} {_images(results)}",
        _selected(results),
        f"    {command(results)}",
        table(results),
        footnote(results),
        f"![{about.title}]({picture})" if picture else "",
        orderings(results),
        pictures,
        out_of_date(results),
        _failures(results),
        f"## Notes\n\n{about.notes.strip()}" if about.notes else "",
        _settings(results),
        _cost(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def heading(results: Results) -> str:
    source, title = results.table.source, results.table.title
    title = f"{source}: {title}" if source else title
    return f"{title} (tuning)" if results.tuning else title


def command(results: Results) -> str:
    words = [results.table.command, f"--seeds {results.seeds}"]
    if results.first_seed:
        words.append(f"--first-seed {results.first_seed}")
    words += [f'--{key} "{names}"' for key, names in (results.selection or {}).items()]
    return " ".join([*words, *(f"{key}={value}" for key, value in named_overrides(results).items())])


def named_overrides(results: Results) -> dict[str, Any]:
    """Return the overrides as given, without paths, which depend on the machine."""
    return {key: "FOLDER" if key == "data.root" else value for key, value in results.overrides.items()}


def _size(results: Results) -> str:
    """`Scale `mini`, 3 seeds`."""
    seeds, scale = _seeds(results), results.table.scale
    return f"Scale `{scale}`, {seeds}" if scale else f"{seeds[0].upper()}{seeds[1:]}"


def _seeds(results: Results) -> str:
    """`3 seeds`, `seeds 6 to 8`, `tuning seeds 1000 to 1002`."""
    first, count = results.first_seed, results.seeds
    if not first:
        return f"{count} seed{'s' * (count > 1)}"
    numbers = f"seed {first}" if count == 1 else f"seeds {first} to {first + count - 1}"
    return f"tuning {numbers}" if results.tuning else numbers


def _selected(results: Results) -> str:
    if not results.selection:
        return ""
    return f"A part of the table: {' and '.join(results.selection)} were selected."


def units(results: Results) -> str:
    """Describe the unit of the numbers."""
    kinds = {results.measure(row, column).kind for row in results.rows for column in results.columns}
    names = {
        "linear": "accuracy of the linear probe, %",
        "knn": "accuracy of the nearest-neighbor probe, %",
        "classifier": "accuracy of the classifier that was trained with the encoder, %",
        "semi": "accuracy after fine-tuning on few labels, %",
        "transfer": "accuracy of the linear probe on the images that the column names, %",
        "generalization": "accuracy of a linear probe for each style on the global encoder, %",
        "personal": "accuracy of each client's own encoder on its own style, %",
        "local": "accuracy of each client's model on its own class mix of the test split, %",
        "style": "share of style features whose nearest neighbor is of the same client, %",
        "detection": "average precision of boxes after fine-tuning a detector, %",
        "segmentation": "average precision of masks after fine-tuning a detector, %",
        "backdoor": "backdoor: share of images with the trigger that are taken for the target's class, % "
        "(less is safer)",
        "rounds-to": "rounds until the kNN monitor reaches the row's target",
        "epochs-to": "local epochs until the kNN monitor reaches the row's target",
        "oscillation": "oscillation of the clients' mean angle δ over rounds, ×1,000 (less is smoother)",
        "drift": "d_w(received, local) in the last round, mean over clients (less is closer)",
        "drift-from-mean": "d_w(mean of the local models, local) in the last round, mean over clients "
        "(less is closer)",
        "angle-weights": "mean angle δ of weights over clients and rounds",
        "angle-gamma": "mean angle δ of normalization layers' scales γ",
        "angle-beta": "mean angle δ of biases and shifts β",
        "mu-capped": "share of clients with μ = 1, mean over rounds, %",
        "predictor-replaced": "share of clients that take the global predictor, mean over rounds, %",
        "generate": "what `fedssl generate` finds: shares in %, distances and errors as they are",
    }
    text = "; ".join(words for kind, words in names.items() if kind in kinds)
    return f"{text[0].upper()}{text[1:]}."


def _images(results: Results) -> str:
    """Describe the images; below the paper's scale, columns keep the paper's names."""
    found = {}
    for outcome in results.outcomes:
        data = outcome.cell.config.data
        name = Path(data.root).name if data.name == "npz" else data.name
        found[name if not data.limit else f"{data.limit:,} of {name}"] = True
    return f"Images: {', '.join(found)}." if found else ""


def footnote(results: Results) -> str:
    """Explain the marks of published means."""
    if not results.means:
        return ""
    texts = [
        f"{PUBLISHED} Published before results were stored seed by seed: only mean and standard deviation "
        "are known, also of the paired differences, which the t-test judges alone."
    ]
    if any(judged.bounded for judged in results.orderings()):
        texts.append(
            f"{BOUNDED} Of these differences only the mean is known. Their standard deviation is at most the "
            "sum of those of both sides, with which they are tested: p is never too small."
        )
    return " ".join(texts)


def out_of_date(results: Results) -> str:
    """List stored results that are out of date, with the reason."""
    lines = stale_lines(results)
    head = "Results that were measured with other settings or older code. They are not used."
    return "\n\n".join(["## Out of date", head, "\n".join(lines)]) if lines else ""


def stale_lines(results: Results) -> list[str]:
    """`- train.lr was 0.1, is 0.5: BYOL · iid (was 45.00 ± 1.00 (3)†), BYOL · skewed (seeds 0, 1)`."""
    seeds: dict[tuple[str, str], list[str]] = {}  # by reason and cell
    for cell in results.planned:
        stale = results.stale.get(cell.name)
        if stale is not None:
            number = stale.record.number(cell.measure)
            was = "" if number is None or number.n == 1 else f" (was {published(number, cell.measure)})"
            known = seeds.setdefault((stale.why, f"{cell.row} · {cell.column}{was}"), [])
            known += [] if stale.record.seed is None else [str(stale.record.seed)]
    lines: dict[str, list[str]] = {}
    for (why, cell_name), known in seeds.items():
        own = f" (seed{'s' * (len(known) > 1)} {', '.join(known)})" if known else ""
        lines.setdefault(why, []).append(f"{cell_name}{own}")
    return [f"- {why}: {', '.join(names)}" for why, names in lines.items()]


def _failures(results: Results) -> str:
    if not results.failures:
        return ""
    lines = [
        f"- {outcome.cell.name}: {outcome.error} (runs/{outcome.path.name})" for outcome in results.failures
    ]
    return "## Failed\n\n" + "\n".join(lines)


def _settings(results: Results) -> str:
    """Format the settings that all cells share, then those of each row; all others have their defaults."""
    about = results.table
    cells = [dict(flatten(values_of(about, row, column))) for row in about.rows for column in about.columns]
    common = {key: value for key, value in cells[0].items() if all(cell.get(key) == value for cell in cells)}
    common |= {key: value for key, value in results.overrides.items() if key != "data.root"}
    text = "\n".join(f"    {key} = {_toml(value)}" for key, value in sorted(common.items()))
    apart = []
    for kind, parts in (("row", about.rows), ("column", about.columns)):
        for part in parts:
            layer = overlay({}, part.config)
            own = {key: value for key, value in flatten(layer) if common.get(key) != value}
            if own:
                apart.append(
                    f"- {kind} {part.name}: " + ", ".join(f"`{key} = {_toml(own[key])}`" for key in own)
                )
    return "\n\n".join(["## Settings", text, *(["\n".join(apart)] if apart else [])])


def _cost(results: Results) -> str:
    """`18 runs, 4h10m of training, on Intel Xeon, with fedssl 0.1.0 (numerics 1).`"""
    seconds = {outcome.path: outcome.seconds for outcome in results.outcomes if not outcome.error}
    if not seconds:
        return ""
    records = [outcome.record for outcome in results.outcomes if outcome.record is not None]
    processors = sorted({record.processor for record in records if record.processor})
    codes = sorted({f"fedssl {each.version} (numerics {each.numerics})" for each in records if each.version})
    parts = [f"{len(seconds)} runs, {duration(sum(seconds.values()))} of training"]
    parts += [f"on {' and '.join(processors)}"] * bool(processors)
    parts += [f"with {' and '.join(codes)}"] * bool(codes)
    return f"{', '.join(parts)}."


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
