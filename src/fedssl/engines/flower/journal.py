"""The event log of a server and its sites: one line per event, as text or as JSON.

Events come from processes that Flower starts and whose output is full of Flower's own lines. They are printed
there as marked lines of JSON (`emit`) and formatted in the process that a person has started (`Output`).
Without `fedssl server` or `fedssl client` around them, events go to Flower's log as plain text.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

MARK = "@fedssl "
VARIABLE = "FEDSSL_JOURNAL"  # set for processes whose events are formatted elsewhere
LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def emit(event: str, level: str = "info", **values: Any) -> None:
    """Report an event.

    Args:
        event: its kind: "round", "failed", "images", "result", "note", …
        level: "info", "warning" or "error".
        **values: what `describe` needs for its text.
    """
    line = {"time": now(), "level": level, "event": event, **values}
    if os.environ.get(VARIABLE):
        print(MARK + json.dumps(line), flush=True)
    else:
        logging.getLogger("flwr").log(LEVELS[level], "%s", describe(line))


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S")


class Output:
    """Prints events, and optionally lines of Flower's log.

    Args:
        as_json: print events as JSON.
        debug: also print what is not an event: Flower's own log.
        write: prints a line.
    """

    def __init__(
        self, as_json: bool = False, debug: bool = False, write: Callable[[str], None] | None = None
    ):
        self.as_json, self.debug = as_json, debug
        self.write = write or (lambda text: print(text, flush=True))

    def __call__(self, text: str, level: str = "info") -> None:
        """Print a note of this process."""
        self.show({"time": now(), "level": level, "event": "note", "text": text})

    def line(self, text: str) -> None:
        """Print a line of a process that Flower started."""
        place = text.find(MARK)
        try:
            found = json.loads(text[place + len(MARK) :]) if place >= 0 else None
        except ValueError:
            found = None
        if isinstance(found, dict):
            self.show(found)
        elif self.debug and text.strip():
            self.write(text.rstrip("\n"))

    def show(self, line: Mapping[str, Any]) -> None:
        if self.as_json:
            self.write(json.dumps(line, ensure_ascii=False))
        else:
            when = str(line.get("time", "")).replace("T", " ")
            self.write(f"{when}  {str(line.get('level', 'info')).upper():<7}  {describe(line)}")


def describe(line: Mapping[str, Any]) -> str:
    """Describe an event in a sentence."""
    event = line.get("event")
    if event == "round":
        return _round(line)
    if event == "failed":
        return f"{line['who']} left out: {line['reason']}"
    return str(line.get("text", ""))


def _round(line: Mapping[str, Any]) -> str:
    """round 3 of 20, 412 images, 14 s, loss 4.1, sent 2.6 MB."""
    parts = [f"round {line['round']} of {line['rounds']}"]
    parts += [f"{line['sites']} of {line['of']} sites"] if "sites" in line else []
    parts += [f"{line['images']:,} images"] if "images" in line else []
    parts += [_seconds(line["seconds"])]
    parts += [f"loss {line['loss']:.4g}"] if "loss" in line else []
    parts += [f"kNN {line['knn']:.1%}"] if "knn" in line else []
    parts += [f"kNN at sites {line['site_knn']:.1%}"] if "site_knn" in line else []
    parts += [f"{word} {_bytes(line[word])}" for word in ("received", "sent") if word in line]
    return ", ".join(parts)


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


def _bytes(number: float) -> str:
    for unit in ("B", "KB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} GB"
