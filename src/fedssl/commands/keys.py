"""Lists the available choices."""

from __future__ import annotations

from collections.abc import Callable

from fedssl.aggregation import AGGREGATIONS
from fedssl.attacks import ATTACKS
from fedssl.config import SECTIONS
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
    "attacks": _summaries(ATTACKS),
    "partitions": _summaries(PARTITIONS),
    "shifts": _summaries(SHIFTS),
    "views": _summaries(VIEWS),
    "engines": _summaries(ENGINES),
    "encoders": _summaries(ENCODERS),
    "protocols": _summaries(PROTOCOLS),
    "recipes": _recipes,
}
