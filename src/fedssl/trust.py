"""Decides which Python files of users may be run.

`fedssl run method.name=./mine.py:Mine` runs mine.py, because the user named it. A run's
config.toml may come from somebody else, so the files that it names are not run when the run is only opened
(`resume`, `eval`, `report`, `export`, …), unless

- `fedssl run` has run the same file before, for the same user, and it has not changed since, or
- the command is given `--trust`.

Files that were run are recorded by path and SHA-256 in `$FEDSSL_HOME/trusted.json` (default `~/.fedssl`).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib.machinery import PathFinder
from pathlib import Path

from fedssl.errors import ConfigError

# The source of the names that are looked up, if it is not the user, and whether the user trusts it.
_source: ContextVar[str] = ContextVar("source", default="")
_trusting: ContextVar[bool] = ContextVar("trusting", default=False)


@contextmanager
def names_from(source: object) -> Iterator[None]:
    """Context manager in which names of parts come from `source`, such as a run's folder."""
    before = _source.set(str(source))
    try:
        yield
    finally:
        _source.reset(before)


@contextmanager
def trusting(trust: bool = True) -> Iterator[None]:
    """Context manager in which all files may be run, if `trust` is True."""
    before = _trusting.set(trust or _trusting.get())
    try:
        yield
    finally:
        _trusting.reset(before)


def admit(kind: str, name: str) -> None:
    """Raise a ConfigError unless the class `name` (`./file.py:Class`, `package.module:Class`) may be loaded.

    Args:
        kind: the kind of class, for the error message.
        name: the class, as a config names it.
    """
    module = name.rpartition(":")[0]
    if module.split(".")[0] == "fedssl" and not module.endswith(".py"):
        return
    if module in sys.modules:  # the class is part of the calling program
        return
    file = find(module)
    source = _source.get()
    if not source or _trusting.get():
        if file is not None:
            remember(file)
    elif file is None or not is_known(file):
        what = (
            "has changed since you ran it" if file is not None and str(file) in _known() else "is not yours"
        )
        raise ConfigError(
            f"{source} names {kind} {name!r}, and {file or module} {what}: it is not run. "
            "If you trust that code, repeat the command with --trust"
        )


def find(module: str) -> Path | None:
    """Find the file of a module without running any code; None if it does not exist."""
    if module.endswith(".py"):
        return Path(module).resolve()
    places: list[str] | None = None
    spec = None
    for part in module.split("."):
        spec = PathFinder.find_spec(
            part, places
        )  # by the last part of its name, without importing the parent
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    return Path(spec.origin).resolve() if spec is not None and spec.origin else None


def is_known(file: Path) -> bool:
    """Whether the user has run this file as it is now."""
    return _known().get(str(file)) == _digest(file)


def remember(file: Path) -> None:
    """Record a file as run by the user. If the record cannot be written, `--trust` is needed later."""
    known, digest = _known(), _digest(file)
    if not digest or known.get(str(file)) == digest:
        return
    known = {path: stored for path, stored in known.items() if os.path.exists(path)} | {str(file): digest}
    record = _record()
    temporary = record.with_name(f".{record.name}.{os.getpid()}.tmp")
    with suppress(OSError):
        record.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as opened:
            json.dump(known, opened, indent=1)
        os.replace(temporary, record)


def home() -> Path:
    """The user's own folder for fedssl: `$FEDSSL_HOME`, or `~/.fedssl`."""
    return Path(os.environ.get("FEDSSL_HOME") or "~/.fedssl").expanduser()


def _record() -> Path:
    return home() / "trusted.json"


def _known() -> dict[str, str]:
    try:
        known = json.loads(_record().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""
