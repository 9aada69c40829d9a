"""The content of a page, collected from run directories as one document of plain values."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedssl._version import __version__
from fedssl.audit.files import FOLDER, TITLES
from fedssl.errors import RunError
from fedssl.report.html import clients, compare, pictures, words
from fedssl.report.html.curves import curves, tidy
from fedssl.report.html.files import RunFiles, read

# The part of a run that needs images: a feature map and nearest neighbors, or `{"why_not": …}`.
Images = Callable[[Path], dict[str, Any]]

FAST = "Skipped: the report was made with --fast."


def document(
    paths: Sequence[str | Path],
    images: Images | None = None,
    left_out: str = FAST,
    centralized: str | Path | None = None,
    names: Mapping[Path, str] | None = None,
) -> dict[str, Any]:
    """Collect the document of these runs; `images` is called once for each setting.

    `centralized` is a run on all images in one place, whose probes are shown next to those of the others;
    `names` are names of settings by the folders of their runs.
    """
    runs, central = unique(paths), None if centralized is None else read(centralized)
    found = compare.groups(runs, names)
    several = len(runs) > 1
    listed = [
        one(run, group, _images(run, group, images, left_out), central if not several else None)
        | {"label": group.name if several else run.path.resolve().name}
        for group in found
        for run in group.runs
    ]
    shown = {
        "title": runs[0].path.name if not several else f"{len(runs)} runs",
        "version": __version__,
        "made": time.time(),
        "summary": words.compared(found) if several else listed[0]["summary"],
        "runs": listed,
        "comparison": compare.comparison(found) if several else None,
    }
    plain: dict[str, Any] = finite(shown)
    return plain


def unique(paths: Sequence[str | Path]) -> list[RunFiles]:
    """Load the runs, without duplicates."""
    if not paths:
        raise RunError("a report needs at least one run")
    return [read(path) for path in {Path(path).resolve(): path for path in paths}.values()]


def one(
    run: RunFiles, group: compare.Group, images: dict[str, Any], central: RunFiles | None = None
) -> dict[str, Any]:
    """Collect one run."""
    changed = run.changed()
    return {
        "id": str(run.path),
        "name": run.path.name or str(run.path.resolve().name),
        "path": str(run.path),
        "group": group.id,
        "names": run.sites or None,
        "headline": headline(run, central),
        "seed": run.seed,
        "status": status(run),
        "summary": words.summary(run),
        "warnings": words.warnings(run),
        "facts": facts(run),
        "curves": [curve.document() for curve in curves(run.metrics)],
        "partition": clients.partition(run),
        "clients": clients.table(run),
        "probes": probes(run),
        "failures": clients.failures(run),
        "images": images,
        "audit": audited(run),
        "samples": pictures.collect(run.path / "samples"),
        "config": [
            {"key": key, "value": value, "changed": key in changed} for key, value in run.values.items()
        ],
    }


def audited(run: RunFiles) -> list[dict[str, Any]]:
    """Return the findings of `fedssl audit`: a title, sentences and a picture for each attack."""
    return [
        {
            "title": TITLES[name],
            "words": found["words"],
            "picture": next(iter(pictures.collect(run.path / FOLDER, f"{name}.png")), None),
        }
        for name, found in run.audit.items()
        if name in TITLES
    ]


def headline(run: RunFiles, central: RunFiles | None = None) -> dict[str, Any] | None:
    """Return the headline number: that of the first probe, else the last one of the monitor."""
    if not run.probes:
        return _monitored(run, "knn", "") or _monitored(run, "site_knn", ", mean over sites")
    probe = run.probes[0]
    known = {each["protocol"]: each["accuracy"] for each in central.probes} if central is not None else {}
    whose = "" if probe["model"] == "global" else f", encoder: {probe['model']}"
    names = {
        "linear": "a linear probe",
        "knn": "a nearest-neighbor probe",
        "linear at sites": f"a linear probe of each site{words.spread_over_sites(probe)}",
        "knn at sites": f"a nearest-neighbor probe of each site{words.spread_over_sites(probe)}",
    }
    by = names.get(probe["protocol"], f"the probe {probe['protocol']}")
    return {
        "label": f"of test images are classified correctly by {by}{whose}",
        "accuracy": probe["accuracy"],
        "untrained": probe["untrained"],
        "centralized": known.get(probe["protocol"]),
    }


def _monitored(run: RunFiles, name: str, whose: str) -> dict[str, Any] | None:
    """Return the last value of a kNN monitor as a headline."""
    found = [line for line in run.metrics if name in line.get("probe", {})]
    if not found:
        return None
    label = f"of test images are classified correctly by the kNN monitor in round {found[-1]['round']}{whose}"
    return {"label": label, "accuracy": found[-1]["probe"][name], "untrained": None, "centralized": None}


def _images(run: RunFiles, group: compare.Group, images: Images | None, left_out: str) -> dict[str, Any]:
    if images is None:
        return {"why_not": left_out}
    if run is not group.runs[0]:
        return {"why_not": f"Shown for one seed of each setting: see {group.runs[0].path.name}."}
    return images(run.path)


def status(run: RunFiles) -> dict[str, Any]:
    """Return progress and time per round."""
    recent = [line["seconds"] for line in run.metrics[-10:]]
    return {
        "finished": bool(run.result),
        "labelled": bool(run.partition.get("holdings", {}).get("class"))
        or {"knn", "site_knn"} & _last_probe(run).keys() != set(),
        "done": run.done,
        "rounds": run.rounds,
        "written": run.written,
        "round_seconds": tidy(sum(recent) / len(recent)) if recent else None,
    }


def _last_probe(run: RunFiles) -> dict[str, Any]:
    found: dict[str, Any] = next((line["probe"] for line in reversed(run.metrics) if "probe" in line), {})
    return found


def facts(run: RunFiles) -> list[dict[str, Any]]:
    """Return the key figures at the top of the page."""
    sizes = clients.client_sizes(run)
    found: list[tuple[str, Any, str, str]] = []
    found += [("sites" if run.sites else "clients", len(run.sites or sizes), "count", "")] if sizes else []
    spent = [line["epsilon"] for line in run.metrics if "epsilon" in line]
    whose = "an image" if run.value("privacy.mode") == "example" else "a client"
    about = f"for {whose}, δ = {run.value('privacy.delta')}"
    found += [("privacy spent (ε)", spent[-1], "number", about)] if spent else []
    distance = run.partition.get("earth_movers_distance")
    found += [("heterogeneity", distance, "number", "0: none, 1: most")] if distance is not None else []
    found += [("rounds", run.done, "count", f"of {run.rounds}" if run.done < run.rounds else "")]
    seconds = sum(line["seconds"] for line in run.metrics)
    found += [("training", seconds, "seconds", "")] if seconds else []
    failed = sum(len(line.get("failed", [])) for line in run.metrics)
    found += [("failures", failed, "count", "")] if run.metrics else []
    if "peak_memory_mb" in run.result:
        found.append(("memory", 1e6 * run.result["peak_memory_mb"], "bytes", "at its peak"))
    return [
        {"label": label, "value": value, "unit": unit, "about": about} for label, value, unit, about in found
    ]


def probes(run: RunFiles) -> list[dict[str, Any]]:
    """Return the final probes, then results of `fedssl eval`; a repeated evaluation replaces the last."""
    found = {(str(probe["protocol"]), ""): probe for probe in run.probes}
    for entry in run.evaluations:
        options = " ".join(f"{key}={value}" for key, value in entry.get("overrides", {}).items())
        found[str(entry["protocol"]), options] = entry
    keys = (
        "protocol",
        "model",
        "images",
        "accuracy",
        "macro_f1",
        "untrained",
        "gain",
        "per_class",
        "confusion",
        "spread",
        "sites",
        "left_out",
    )
    return [
        {**{key: probe.get(key) for key in keys}, "options": options}
        for (_, options), probe in found.items()
        if "accuracy" in probe
    ]


def finite(value: Any) -> Any:
    """Replace numbers that JSON cannot represent by null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value
