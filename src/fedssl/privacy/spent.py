"""A client's own ledger of its privacy budget, because it cannot rely on the server's."""

from __future__ import annotations

import json
import os
from pathlib import Path

from fedssl.privacy.accountant import Ledger, Release
from fedssl.storage import read_lines

SPENT_FILE = "privacy-spent.jsonl"


class SpentFile:
    """A line for every round in which a client has trained.

    Args:
        path: the file, in the client's own folder.
        repeats: whether a repeated round draws the same noise, and therefore counts once.
    """

    def __init__(self, path: Path, repeats: bool) -> None:
        self.path, self.repeats = path, repeats

    def before(self, round: int) -> Ledger:
        """Everything spent before a round; with new noise, rounds that were run and then lost count, too."""
        ledger = Ledger()
        for line in self._lines():
            if not self.repeats or line["round"] < round:
                ledger = ledger.after(Release(line["rate"], line["noise"]), int(line["steps"]))
        return ledger

    def add(self, round: int, release: Release, steps: int) -> None:
        """Add a round, on disk before the client trains."""
        line = {"round": round, "rate": release.rate, "noise": release.noise, "steps": steps}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> list[dict[str, float]]:
        """All lines; only the last one of a round that is repeated with the same noise."""
        lines = list(read_lines(self.path))
        return list({line["round"]: line for line in lines}.values()) if self.repeats else lines
