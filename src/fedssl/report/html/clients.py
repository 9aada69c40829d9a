"""Clients: their images, participation, results and failures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedssl.report.html.curves import NAMES, describe_curve, tidy
from fedssl.report.html.files import RunFiles, is_number, last
from fedssl.rundir import client_sizes as sizes_of

MOST_CLASSES = 3  # listed by name in the table
MOST_FAILURES = 300  # listed one by one


def partition(run: RunFiles) -> dict[str, Any] | None:
    """Count images [client, kind] by class and by style, if known."""
    sizes = client_sizes(run)
    if not sizes:
        return None
    holdings: Mapping[str, Any] = run.partition.get("holdings", {})
    return {
        "sizes": sizes,
        "distance": tidy(run.partition.get("earth_movers_distance")),
        "scheme": str(run.value("partition.scheme")),
        "by": [{"kind": kind, **held} for kind, held in holdings.items() if any(held["counts"])],
    }


def client_sizes(run: RunFiles) -> list[int]:
    """Return the images of each client; those of a site are known after it first takes part."""
    return sizes_of(run.partition, run.metrics)


def table(run: RunFiles) -> dict[str, Any]:
    """Return a row per client: images, participation, failures, and its latest numbers."""
    sizes, seen, failed = client_sizes(run), _seen(run), _failed(run)
    number = max([len(sizes), *(client + 1 for client in (*seen, *failed))])
    keys = list(dict.fromkeys(key for own in seen.values() for each in own for key in _numbers(each)))
    accuracy = _personal(run)
    columns = [{"key": "client", "label": "client", "unit": "count"}]
    columns += [{"key": "site", "label": "site", "unit": "text"}] if run.sites else []
    columns += [{"key": "images", "label": "images", "unit": "count"}]
    held = run.partition.get("holdings", {}).get("class")
    columns += [{"key": "classes", "label": "main classes", "unit": "text"}] if held else []
    columns += [
        {"key": "rounds", "label": "rounds", "unit": "count"},
        {"key": "failed", "label": "failed", "unit": "count"},
    ]
    columns += [{"key": "accuracy", "label": "own probe", "unit": "percent"}] if accuracy else []
    columns += [describe_curve(key) for key in keys]
    columns += [{"key": "seconds", "label": "time per round", "unit": "seconds"}] if seen else []
    rows = []
    for client in range(number):
        own = seen.get(client, [])
        row = {
            "client": client,
            "site": run.sites[client] if client < len(run.sites) else "",
            "images": sizes[client] if client < len(sizes) else None,
            "classes": main_classes(held, client) if held else "",
            "rounds": len(own),
            "failed": failed.get(client, 0),
            "accuracy": tidy(accuracy.get(client)),
            "seconds": tidy(sum(each["seconds"] for each in own) / len(own)) if own else None,
        }
        latest = {key: tidy(last(own, key)) for key in keys}
        rows.append([{**latest, **row}[column["key"]] for column in columns])
    return {"columns": columns, "rows": rows}


def main_classes(held: Mapping[str, Any], client: int) -> str:
    """Format as 'cat 62 %, dog 30 %, frog 5 % and 2 more'."""
    counts: Mapping[str, int] = held["counts"][client] if client < len(held["counts"]) else {}
    order = sorted(counts, key=lambda kind: (-counts[kind], int(kind)))
    total = sum(counts.values())
    named = [
        f"{_name(held['names'], kind)} {100 * counts[kind] / total:.0f} %" for kind in order[:MOST_CLASSES]
    ]
    more = f" and {len(order) - MOST_CLASSES} more" if len(order) > MOST_CLASSES else ""
    return ", ".join(named) + more


def failures(run: RunFiles) -> dict[str, Any]:
    """List failures by reason, most frequent first, and one by one."""
    each = [
        {"round": line["round"], "client": failed["client"], "reason": str(failed["reason"])}
        for line in run.metrics
        for failed in line.get("failed", [])
    ]
    reasons: dict[str, list[dict[str, Any]]] = {}
    for failure in each:
        reasons.setdefault(failure["reason"], []).append(failure)
    return {
        "total": len(each),
        "turns": len(each) + sum(len(line["clients"]) for line in run.metrics),
        "unused": sum(len(line.get("unused", [])) for line in run.metrics),
        "reasons": [
            {
                "reason": reason,
                "count": len(cases),
                "clients": sorted({case["client"] for case in cases}),
                "first": cases[0]["round"],
                "last": cases[-1]["round"],
            }
            for reason, cases in sorted(reasons.items(), key=lambda item: -len(item[1]))
        ],
        "each": each[-MOST_FAILURES:],
    }


def _seen(run: RunFiles) -> dict[int, list[Mapping[str, Any]]]:
    found: dict[int, list[Mapping[str, Any]]] = {}
    for line in run.metrics:
        for client in line["clients"]:
            found.setdefault(int(client["client"]), []).append(client)
    return found


def _failed(run: RunFiles) -> dict[int, int]:
    found: dict[int, int] = {}
    for line in run.metrics:
        for failure in line.get("failed", []):
            found[int(failure["client"])] = found.get(int(failure["client"]), 0) + 1
    return found


def _numbers(client: Mapping[str, Any]) -> list[str]:
    wanted = [key for key, value in client.items() if is_number(value) and key not in NAMES]
    return wanted + (["cluster"] if "cluster" in client else [])


def _personal(run: RunFiles) -> dict[int, float]:
    """Return the latest accuracies of `fedssl eval --protocol personal`."""
    for entry in reversed(run.evaluations):
        if entry.get("protocol") == "personal":
            return {int(row["client"]): float(row["accuracy"]) for row in entry.get("clients", [])}
    return {}


def _name(names: list[str], kind: str) -> str:
    return names[int(kind)] if int(kind) < len(names) else kind
