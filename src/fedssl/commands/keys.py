"""What there is to choose from, and every config key with its default and meaning."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable

from pydantic import BaseModel

from fedssl.aggregation import AGGREGATIONS
from fedssl.config import SECTIONS, Config
from fedssl.data import DATASETS, PARTITIONS, SHIFTS, VIEWS
from fedssl.engines import ENGINES
from fedssl.evaluation import PROTOCOLS
from fedssl.methods import METHODS
from fedssl.models import ENCODERS
from fedssl.objectives import OBJECTIVES
from fedssl.registry import Registry

CHOICES: dict[str, Registry] = {
    name: section.registry() for name, section in SECTIONS.items() if section.chosen
}


def _summaries(registry: Registry) -> Callable[[], dict[str, str]]:
    return lambda: {name: registry.summary(name) for name in registry}


def _recipes() -> dict[str, str]:
    from fedssl.papers.recipe import titles

    return titles()


LISTS: dict[str, Callable[[], dict[str, str]]] = {
    "methods": _summaries(METHODS),
    "objectives": _summaries(OBJECTIVES),
    "aggregations": _summaries(AGGREGATIONS),
    "datasets": _summaries(DATASETS),
    "partitions": _summaries(PARTITIONS),
    "shifts": _summaries(SHIFTS),
    "views": _summaries(VIEWS),
    "engines": _summaries(ENGINES),
    "encoders": _summaries(ENCODERS),
    "protocols": _summaries(PROTOCOLS),
    "recipes": _recipes,
}


def describe_keys() -> str:
    """Every key, its default and its meaning; keys of a chosen part stand under the part's name."""
    lines = ["keys (override any of them with key=value):"]
    for section, field in Config.model_fields.items():
        if section in CHOICES:
            lines += _choice(section)
        elif section in SECTIONS:
            lines += ["", *_fields(SECTIONS[section].options(), section)]
        else:
            lines.append(_line(section, field.default, field.annotation, field.description))
    return "\n".join(lines)


def _choice(section: str) -> list[str]:
    registry, key = CHOICES[section], SECTIONS[section].main
    lines = ["", f"  {section}.{key} = {SECTIONS[section].default}"]
    lines.append(f"      one of {', '.join(registry)}, or a class of yours: ./file.py:Class")
    shown: set[str] = {key}
    common = set.intersection(*(set(registry.get(name).model_fields) for name in registry)) - {key}
    first = registry.get(next(iter(registry)))
    lines += _fields(first, section, only=common)
    shown |= common
    for name in registry:
        part = registry.get(name)
        own = [field for field in part.model_fields if field not in shown]
        if own:
            lines.append(f"    with {section}.{key}={name}:")
            lines += ["  " + line for line in _fields(part, section, only=set(own))]
    return lines


def _fields(part: type[BaseModel], section: str, only: set[str] | None = None) -> list[str]:
    return [
        _line(f"{section}.{name}", field.default, field.annotation, field.description)
        for name, field in part.model_fields.items()
        if only is None or name in only
    ]


def _line(key: str, default: object, annotation: object, description: str | None) -> str:
    options = typing.get_args(annotation) if typing.get_origin(annotation) is typing.Literal else ()
    if typing.get_origin(annotation) in (typing.Union, types.UnionType) and default is None:
        default = "none"
    choices = f" [{'|'.join(str(option) for option in options)}]" if options else ""
    shown = str(default).lower() if isinstance(default, bool) else default if default != "" else '""'
    return f"  {key} = {shown}{choices}\n      {description}"
