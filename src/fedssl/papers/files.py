"""The files of recipes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fedssl.errors import ConfigError, did_you_mean


def folder() -> Path:
    """In an installed package: fedssl/recipes. In a checkout: recipes/ next to src/."""
    package = Path(__file__).parents[1]
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parents[1] / "recipes"


def recipe_files() -> dict[str, Path]:
    """Return every included TOML file by name, in natural order (Table 2 before Table 10)."""
    files = folder().glob("*.toml")
    return {file.stem: file for file in sorted(files, key=lambda file: _by_number(file.stem))}


def find(name: str, known: Callable[[], Iterable[str]], beside: Path | None = None) -> Path:
    """Find the file of a recipe.

    Args:
        name: the name of an included recipe, or a path that ends in .toml.
        known: returns names to suggest if there is no such recipe; only called then, because it is slow.
        beside: a folder to search first.
    """
    if name.endswith(".toml"):
        return Path(name)
    own = beside / f"{name}.toml" if beside else None
    if own is not None and own.is_file():
        return own
    files = recipe_files()
    if name not in files:
        raise ConfigError(f"unknown recipe {name!r}: {did_you_mean(name, known())}")
    return files[name]


def read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read recipe {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: {error}") from None


def _by_number(name: str) -> list[tuple[int, str]]:
    """Split `fedema-table10` into words and numbers, so that it sorts after `fedema-table2`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
