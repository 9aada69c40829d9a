"""Curves over rounds of all numbers in metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fedssl.report.html.files import is_number

Unit = Literal["number", "percent", "bytes", "seconds", "count"]


@dataclass(frozen=True)
class Meaning:
    """Label, format and description of a number."""

    label: str
    unit: Unit = "number"
    about: str = ""


# In display order; numbers of methods that are not listed here follow.
MEANINGS = {
    "loss": Meaning("loss", about="of the objective, mean over clients weighted by images"),
    "probe.knn": Meaning("kNN accuracy", "percent", "of the monitor, on test images"),
    "probe.site_knn": Meaning(
        "kNN accuracy at sites", "percent", "of the monitor, on own images of sites, mean over sites"
    ),
    "probe.site_knn_spread": Meaning(
        "kNN spread over sites", "percent", "standard deviation of the sites' accuracies"
    ),
    "probe.site_feature_std": Meaning("spread of features at sites", about="mean over sites; 0: collapsed"),
    "probe.feature_std": Meaning("spread of features", about="about 1: they fill the sphere; 0: collapsed"),
    "divergence": Meaning(
        "divergence", about="distance of a client's encoder after training from the one it received"
    ),
    "divergence_before": Meaning(
        "divergence before training", about="distance of a client's own encoder from the global one"
    ),
    "drift": Meaning("drift", about="distance by layers of a client's backbone from the received one"),
    "mu": Meaning("μ", about="share of its own model that a client keeps"),
    "mu_predictor": Meaning("μ of the predictor", about="share of its own predictor that a client keeps"),
    "mu_capped": Meaning("clients with μ = 1", "percent", "share that keeps all of its own model"),
    "predictor_replaced": Meaning(
        "replaced predictors", "percent", "share of clients that take the global predictor (FedU)"
    ),
    "lambda": Meaning("λ", about="a client's scaler: μ = λ · divergence before training, at most 1"),
    "angle": Meaning("angle δ", about="cosine between a client's model and the global one"),
    "layer_angle": Meaning("angle δ by layer", about="cosine of layers, mean over layers"),
    "angle_weights": Meaning("angle δ of weights", about="of convolutions and linear layers: mean of layers"),
    "angle_gamma": Meaning("angle δ of γ", about="of normalization layers' scales: mean of layers"),
    "angle_beta": Meaning("angle δ of β", about="of biases and normalization layers' shifts: mean"),
    "norm_weights": Meaning("norm of weights", about="of the global convolutions and linear layers, mean"),
    "norm_gamma": Meaning("norm of γ", about="of the global normalization layers' scales, mean over layers"),
    "norm_beta": Meaning("norm of β", about="of the global biases and shifts, mean over layers"),
    "alignment": Meaning("alignment", about="cosine of a client's features with those of its cluster"),
    "generator_ratio": Meaning(
        "‖G‖/‖h_c‖",
        about="length of FedStyle's generated features, over that of content features; > 3: diverges",
    ),
    "consensus_distance": Meaning("consensus distance", about="how far nodes are from their mean"),
    "spectral_gap": Meaning(
        "spectral gap", about="of the mixing matrix: larger values mean faster agreement"
    ),
    "epsilon": Meaning("ε spent", about="privacy of a client: what was released so far; δ is in the config"),
    "clip": Meaning("clipping norm", about="largest length of a client's update in this round"),
    "quantisation": Meaning("rounding error", about="largest error of secure aggregation in a parameter"),
    "bytes_up": Meaning("upload", "bytes", "sent by all clients in a round"),
    "bytes_down": Meaning("download", "bytes", "sent to all clients in a round"),
    "seconds": Meaning("time", "seconds", "of a round"),
    "views_per_second": Meaning("speed", "count", "views trained on per second"),
    "failed": Meaning("failures", "count", "clients that were left out of a round"),
}
# Not curves: the client's id, and the index of its cluster.
NAMES = ("client", "images", "seconds", "cluster")
MOST_POINTS = 400
MOST_CLIENTS = 12  # drawn as single lines, too


def meaning(key: str) -> Meaning:
    return MEANINGS.get(key, Meaning(key.replace("_", " "), about="mean over clients"))


def describe_curve(key: str) -> dict[str, str]:
    known = meaning(key)
    return {"key": key, "label": known.label, "unit": known.unit, "about": known.about}


@dataclass(frozen=True)
class Curve:
    """A number over rounds, with its spread over clients if available."""

    key: str
    points: dict[int, float]
    low: dict[int, float]
    high: dict[int, float]
    clients: dict[int, dict[int, float]]

    def document(self) -> dict[str, Any]:
        rounds = thinned(sorted(self.points))
        band = any(self.low[number] < self.high[number] for number in self.low)
        lines = self.clients if 1 < len(self.clients) <= MOST_CLIENTS else {}
        return {
            **describe_curve(self.key),
            "rounds": rounds,
            "values": _at(self.points, rounds),
            "low": _at(self.low, rounds) if band else None,
            "high": _at(self.high, rounds) if band else None,
            "clients": {str(client): _at(own, rounds) for client, own in sorted(lines.items())},
        }


def curves(metrics: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Return a curve for every number of the rounds and of their clients."""
    found: dict[str, Curve] = {}

    def curve(key: str) -> Curve:
        return found.setdefault(key, Curve(key, {}, {}, {}, {}))

    for line in metrics:
        number, clients = int(line["round"]), line.get("clients", [])
        for key, value in _of_round(line):
            curve(key).points[number] = value
        for key in _client_keys(clients):
            own = {client["client"]: float(client[key]) for client in clients if is_number(client.get(key))}
            drawn = curve(key)
            # Numbers that the line does not average itself are averaged without weights.
            drawn.points.setdefault(number, sum(own.values()) / len(own))
            drawn.low[number], drawn.high[number] = min(own.values()), max(own.values())
            for client, value in own.items():
                drawn.clients.setdefault(client, {})[number] = value
    if not any(found["failed"].points.values() if "failed" in found else ()):
        found.pop("failed", None)  # nothing failed: omit a flat line
    return sorted(found.values(), key=lambda each: rank(each.key))


def rank(key: str) -> int:
    """Return the position of a number on the page."""
    return list(MEANINGS).index(key) if key in MEANINGS else len(MEANINGS)


def _of_round(line: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    for key, value in line.items():
        if is_number(value) and key not in ("round", "views"):
            yield key, float(value)
    for key, value in line.get("probe", {}).items():
        if is_number(value) and key != "seconds":
            yield f"probe.{key}", float(value)
    if line.get("seconds") and line.get("views"):
        yield "views_per_second", line["views"] / line["seconds"]
    yield "failed", float(len(line.get("failed", [])))


def _client_keys(clients: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = {key: None for client in clients for key, value in client.items() if is_number(value)}
    return [key for key in keys if key not in NAMES]


def thinned(rounds: Sequence[int]) -> list[int]:
    """Return at most MOST_POINTS rounds, evenly spaced, including the last."""
    step = -(-len(rounds) // MOST_POINTS)
    return sorted({*rounds[::step], *rounds[-1:]}) if rounds else []


def tidy(value: float | None) -> float | None:
    """Round to six digits, more than a screen shows; None if not finite."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def _at(points: Mapping[int, float], rounds: Sequence[int]) -> list[float | None]:
    return [tidy(points.get(number)) for number in rounds]
