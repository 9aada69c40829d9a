"""Numbers of a run over its rounds, from its metrics or from the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

CLIENTS = "clients."  # `clients.mu`: the number of each client
ALWAYS = ("loss", "probe.knn")  # kept with every stored result; they are small
DIGITS = 6  # significant ones, in the store


def points(lines: Iterable[Mapping[str, Any]], key: str) -> Iterator[tuple[int, int, float]]:
    """Round, client (0 where the number is not of a client) and value, from the lines of metrics.jsonl."""
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
    """By client, rounds and values: what is stored."""
    packed: dict[str, list[list[float]]] = {}
    for round_number, client, value in found:
        rounds, values = packed.setdefault(str(client), [[], []])
        rounds.append(round_number)
        values.append(float(f"{value:.{DIGITS}g}"))
    return packed


def unpack(packed: Mapping[str, list[list[float]]]) -> Iterator[tuple[int, int, float]]:
    """What `pack` was given, round by round."""
    every = [
        (int(round_number), int(client), value)
        for client, (rounds, values) in packed.items()
        for round_number, value in zip(rounds, values, strict=True)
    ]
    yield from sorted(every)
