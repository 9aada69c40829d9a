"""Numbers of a run over rounds, from its metrics or from the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

CLIENTS = "clients."  # `clients.mu`: the value of each client
ALWAYS = ("loss", "probe.knn")  # small enough to be stored with every result
DIGITS = 6  # significant digits in the store


def points(lines: Iterable[Mapping[str, Any]], key: str) -> Iterator[tuple[int, int, float]]:
    """Return round, client (0 if not per client) and value, from the lines of metrics.jsonl."""
    for line in lines:
        if key.startswith(CLIENTS):
            own = key.removeprefix(CLIENTS)
            for client in line["clients"]:
                if client.get(own) is not None:
                    yield line["round"], client["client"], client[own]
            continue
        value: Any = line
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None:
            yield line["round"], 0, value


def pack(found: Iterable[tuple[int, int, float]]) -> dict[str, list[list[float]]]:
    """Group points by client into rounds and values, as stored."""
    packed: dict[str, list[list[float]]] = {}
    for round_number, client, value in found:
        rounds, values = packed.setdefault(str(client), [[], []])
        rounds.append(round_number)
        values.append(float(f"{value:.{DIGITS}g}"))
    return packed


def unpack(packed: Mapping[str, list[list[float]]]) -> Iterator[tuple[int, int, float]]:
    """Reverse `pack`, ordered by round."""
    every = [
        (int(round_number), int(client), value)
        for client, (rounds, values) in packed.items()
        for round_number, value in zip(rounds, values, strict=True)
    ]
    yield from sorted(every)
