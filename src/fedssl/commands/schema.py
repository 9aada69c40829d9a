"""The JSON schema of config files, for completion and validation in editors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, create_model

from fedssl.commands.keys import CHOICES
from fedssl.config import MAIN_KEY, SECTIONS, Config
from fedssl.registry import Registry

DIALECT = "https://json-schema.org/draft/2020-12/schema"
OWN_CLASS = {"type": "string", "pattern": ":", "description": "your own class: ./file.py:Class"}


def schema() -> dict[str, Any]:
    """The schema of a TOML (or JSON) config: sections, keys and names."""
    properties = {}
    for section in Config.model_fields:
        if section in CHOICES:
            properties[section] = _choice(section, CHOICES[section])
        elif section in SECTIONS:
            properties[section] = _or_word(section, options_of(SECTIONS[section].options()))
        else:
            properties[section] = _plain(section)
        if section in SECTIONS:
            properties[section]["description"] = SECTIONS[section].about
    return {
        "$schema": DIALECT,
        "title": "fedssl config",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _plain(section: str) -> dict[str, Any]:
    """A key without a section: seed, rounds, device."""
    field = Config.model_fields[section]
    alone = create_model("Alone", **{section: (field.annotation, field)})  # type: ignore[call-overload]
    only: dict[str, Any] = alone.model_json_schema()["properties"][section]
    return only


def options_of(part: type[BaseModel], without: str = "") -> dict[str, Any]:
    """The keys of one implementation; no other keys are allowed."""
    made = part.model_json_schema()
    found = {name: value for name, value in made.get("properties", {}).items() if name != without}
    return {"type": "object", "properties": found, "additionalProperties": False}


def _or_word(section: str, options: dict[str, Any]) -> dict[str, Any]:
    """A plain string is short for the section's main key: `data = "digits"`."""
    if section not in MAIN_KEY:
        return options
    return {"anyOf": [options["properties"][MAIN_KEY[section]], options]}


def _choice(section: str, registry: Registry) -> dict[str, Any]:
    """A section with implementations chosen by name; the available keys depend on the name."""
    key, names = MAIN_KEY[section], list(registry)
    word = {"anyOf": [{"enum": names}, OWN_CLASS]}
    cases = []
    for name in names:
        keys = options_of(registry.get(name), without=key)
        keys["properties"] = {
            key: {"const": name, "description": registry.summary(name)},
            **keys["properties"],
        }
        if name != SECTIONS[section].default:
            keys["required"] = [key]
        cases.append(keys)
    other = {"type": "object", "properties": {key: OWN_CLASS}, "required": [key]}
    return {"anyOf": [word, *cases, other]}
