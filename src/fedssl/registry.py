"""Registries of exchangeable parts by name: `simclr` is `fedssl.objectives.simclr:SimCLR`.

Entries are import paths, so that looking up a name only imports that module. A name may also be
such a path, `package.module:Thing` or `./file.py:Thing`, so classes outside of fedssl can be used
without registration.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedssl import trust
from fedssl.errors import ConfigError, did_you_mean

# Where each kind of part is registered, by what chooses it. Used in error messages only.
CHOSEN_BY = {
    "objective.name": "fedssl.objectives:OBJECTIVES",
    "method.name": "fedssl.methods:METHODS",
    "aggregation.name": "fedssl.aggregation:AGGREGATIONS",
    "attack.name": "fedssl.attacks:ATTACKS",
    "partition.scheme": "fedssl.data:PARTITIONS",
    "shift.name": "fedssl.data:SHIFTS",
    "views.recipe": "fedssl.data:VIEWS",
    "engine.name": "fedssl.engines:ENGINES",
    "data.name": "fedssl.data:DATASETS",
    "model.encoder": "fedssl.models:ENCODERS",
    "eval --protocol": "fedssl.evaluation:PROTOCOLS",
}


class Registry:
    """A named set of import paths (or objects), one for each kind of exchangeable part.

    Args:
        kind: the kind of entries, for error messages.
        entries: import paths by name.
        base: import path of the class that every entry must be a subclass of.
        parameters: instead of a base class: required parameter names of a function.
    """

    def __init__(
        self, kind: str, entries: dict[str, str], base: str = "", parameters: tuple[str, ...] = ()
    ) -> None:
        self.kind = kind
        self.base, self.parameters = base, parameters
        self._entries: dict[str, Any] = dict(entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def register(self, name: str, thing: Any) -> None:
        """Add a part, or an import path to one, under a new name."""
        if name in self._entries:
            raise ConfigError(f"{self.kind} {name!r} exists already")
        self._entries[name] = thing

    def canonical(self, name: str) -> str:
        """The registered name, ignoring case: `FedEMA` is `fedema`."""
        return name.lower() if name not in self._entries and name.lower() in self._entries else name

    def check(self, name: str) -> None:
        """Raise a ConfigError if `name` is unknown, or if it is code that may not be run (`fedssl.trust`)."""
        if name in self._entries:
            return
        if ":" not in name:
            what = self._what_it_is(lambda other: name.lower() in other)
            found = [f"it is {_article(kind)} {kind}: {chosen}={name.lower()}" for kind, chosen in what]
            hint = "; ".join(found) or did_you_mean(name.lower(), self._entries)
            raise ConfigError(f"unknown {self.kind} {name!r}: {hint}")
        trust.admit(self.kind, name)

    def get(self, name: str) -> Any:
        """Import and return the part.

        Raises:
            ConfigError: the name is unknown, cannot be loaded, or is of another kind.
        """
        name = self.canonical(name)
        self.check(name)
        entry = self._entries.get(name, name)
        thing = load_object(self.kind, entry) if isinstance(entry, str) else entry
        if self.base:
            base = load_object(self.kind, self.base)
            if not (isinstance(thing, type) and issubclass(thing, base)):
                expected = self.base.replace(":", ".")
                what = self._what_it_is(lambda other: other.accepts(thing))
                hint = "".join(f"; it is {_article(kind)} {kind}: {chosen}={name}" for kind, chosen in what)
                raise ConfigError(f"{self.kind} {name!r} must be a subclass of {expected}{hint}")
        elif name not in self._entries and not _takes(thing, self.parameters):
            wanted = ", ".join(self.parameters)
            raise ConfigError(f"{self.kind} {name!r} must be a function of ({wanted})")
        return thing

    def accepts(self, thing: Any) -> bool:
        """Whether a class is of this kind."""
        if not self.base or not isinstance(thing, type):
            return False
        return issubclass(thing, load_object(self.kind, self.base))

    def _what_it_is(self, fits: Callable[[Registry], bool]) -> list[tuple[str, str]]:
        """Return other kinds that the class belongs to, with the keys that select them."""
        others = {chosen: load_object("registry", path) for chosen, path in CHOSEN_BY.items()}
        return [(other.kind, chosen) for chosen, other in others.items() if other is not self and fits(other)]

    def summary(self, name: str) -> str:
        """The first line of a part's docstring, read from the source without importing it."""
        entry = self._entries[name]
        if not isinstance(entry, str):
            return (entry.__doc__ or "").strip().partition("\n")[0]
        module_name, _, attribute = entry.partition(":")
        return _first_line(module_name, attribute)


def _first_line(module_name: str, attribute: str) -> str:
    """Return the first docstring line of a class or function that the module defines or imports."""
    spec = importlib.util.find_spec(module_name)
    if spec is None or spec.origin is None:
        return ""
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == attribute:
            return (ast.get_docstring(node) or "").partition("\n")[0]
        if isinstance(node, ast.ImportFrom) and attribute in [each.name for each in node.names]:
            return _first_line(node.module or "", attribute)
    return ""


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


def _takes(thing: Any, parameters: tuple[str, ...]) -> bool:
    return inspect.isfunction(thing) and tuple(inspect.signature(thing).parameters) == parameters


def load_object(kind: str, path: str) -> Any:
    """Import the object at `package.module:Thing` or `./file.py:Thing`; `kind` is for errors."""
    module_name, _, attribute = path.rpartition(":")
    try:
        module = _load_file(Path(module_name)) if module_name.endswith(".py") else None
        module = module or importlib.import_module(module_name)
    except Exception as error:  # a user's file may raise anything
        problem = (
            str(error) if isinstance(error, ImportError | OSError) else f"{type(error).__name__}: {error}"
        )
        raise ConfigError(f"{kind} {path!r} cannot be loaded: {problem}") from error
    if not hasattr(module, attribute):
        raise ConfigError(f"{kind} {path!r}: {module_name} has no {attribute!r}")
    return getattr(module, attribute)


def _load_file(file: Path) -> Any:
    file = file.resolve()
    name = f"fedssl_user_{file.stem}_{hashlib.sha1(str(file).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise ImportError(f"{file} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # before executing it: pydantic and dataclasses look up annotations here
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
