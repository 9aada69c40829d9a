"""Which tests were skipped, why, and how to install what they need."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = {"chromium": "`apt-get install chromium` (Debian, Ubuntu), `brew install --cask chromium` (macOS)"}


class Skip(NamedTuple):
    reason: str
    is_file: bool  # a whole test file, whose tests are not known


def skips_of(reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> list[Skip]:
    found = []
    for report in reports:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        found.append(Skip(reason.removeprefix("Skipped: "), isinstance(report, pytest.CollectReport)))
    return found


def summarize_skips(skips: Iterable[Skip]) -> Iterator[str]:
    """A line for each thing that is missing, then one for each other reason."""
    missing: dict[str, list[Skip]] = {}
    others: dict[str, list[Skip]] = {}
    for skip in skips:
        name = missing_thing(skip.reason)
        (missing if name else others).setdefault(name or skip.reason, []).append(skip)
    for name, found in sorted(missing.items()):
        yield f"{name} is not installed: {count(found)} skipped; to run them: {how_to_get(name)}"
    for reason, found in sorted(others.items()):
        yield f"{reason}: {count(found)} skipped"


def missing_thing(reason: str) -> str | None:
    """The package or program that a reason says is missing."""
    package = re.match(r"could not import '(\w+)", reason)
    if package:
        return package[1]
    return next((name for name in PROGRAMS if reason.startswith(f"{name} is not installed")), None)


def how_to_get(name: str) -> str:
    if name in PROGRAMS:
        return PROGRAMS[name]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, packages in extras.items():
        if any(re.match(r"[\w-]+", package)[0].replace("-", "_") == name for package in packages):  # type: ignore[index]
            return f"`pip install 'fedssl[{extra}]'`"
    return f"`pip install {name}`"


def count(skips: list[Skip]) -> str:
    files = sum(skip.is_file for skip in skips)
    tests = len(skips) - files
    counted = [
        f"{number} {noun}{'s' * (number > 1)}" for number, noun in ((tests, "test"), (files, "test file"))
    ]
    return " and ".join(text for text in counted if not text.startswith("0 "))
