"""`fedssl run --help`: describes the config, section by section.

It reads the published schema (docs/fedssl.schema.json), which a test keeps up to date, so that help answers
without importing PyTorch. Only the keys of a user's own class are read from that class.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedssl.errors import ConfigError, did_you_mean

Schema = Mapping[str, Any]
ALL = "all"


def published() -> Path:
    """Find the schema: next to this file in an installed package, in docs/ in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "fedssl.schema.json"
    return installed if installed.exists() else package.parents[1] / "docs" / "fedssl.schema.json"


def sections() -> dict[str, Schema]:
    """Read the schema of every section, and of every key without a section."""
    found: dict[str, Schema] = json.loads(published().read_text(encoding="utf-8"))["properties"]
    return found


def overview(words: Iterable[str] = ()) -> str:
    """List the sections with one line each, and the keys of the user's own classes."""
    known = sections()
    plain = [line for name, entry in known.items() if not _is_section(entry) for line in _key(name, entry)]
    width = max(map(len, known))
    listed = [
        f"  {name:<{width}}  {entry.get('description', '')}".rstrip()
        for name, entry in known.items()
        if _is_section(entry)
    ]
    lines = ["keys (override them with key=value):", *plain, "", "sections:", *listed, ""]
    for section, path, properties in own_classes(words):
        lines += [*_of_part(section, "", path, properties, without=set()), ""]
    return "\n".join(
        [*lines, "`fedssl run --help SECTION` lists the keys of a section, `--help all` all keys."]
    )


def describe(topic: str = ALL, words: Iterable[str] = ()) -> str:
    """Describe every key of a section (or of all sections) with its default.

    Args:
        topic: a section, a key without a section, or "all".
        words: the rest of the command line; keys of the user's own classes in it are described, too.
    """
    known = sections()
    if topic != ALL and topic not in known:
        raise ConfigError(f"no section {topic!r} of the config: {did_you_mean(topic, [*known, ALL])}")
    own = list(own_classes(words))
    lines: list[str] = []
    for name in known if topic == ALL else [topic]:
        entry = known[name]
        if not _is_section(entry):
            lines += _key(name, entry)
            continue
        lines += ["", f"{name}: {entry.get('description', '')}", *_section(name, entry)]
        for section, path, properties in own:
            if section == name:
                lines += _of_part(section, "", path, properties, without=set())
    return "\n".join(lines).strip("\n")


def own_classes(words: Iterable[str]) -> Iterator[tuple[str, str, Schema]]:
    """Return section, path and keys of the classes on the command line: method.name=./file.py:Class."""
    given = dict(word.split("=", 1) for word in words if "=" in word)
    paths = {key: value for key, value in given.items() if ":" in value and ".py:" in value}
    if not paths:
        return
    from fedssl.commands.schema import options_of
    from fedssl.config import SECTIONS

    for key, path in paths.items():
        name, _, last = key.partition(".")
        section = SECTIONS.get(name)
        if section is not None and section.chosen and last in ("", section.main):
            part = section.registry().get(path)
            yield name, path, options_of(part, without=section.main)["properties"]


def _is_section(entry: Schema) -> bool:
    return "anyOf" in entry or entry.get("type") == "object"


def _section(name: str, entry: Schema) -> list[str]:
    options = [each for each in entry.get("anyOf", [entry]) if each.get("type") == "object"]
    if len(options) == 1:
        return [
            line for key, about in options[0]["properties"].items() for line in _key(f"{name}.{key}", about)
        ]
    parts = {}
    for option in options:
        main = next(iter(option["properties"]))
        chosen = option["properties"][main].get("const")
        if chosen is not None:
            parts[chosen] = {key: about for key, about in option["properties"].items() if key != main}
    default = next(each for each in options if not each.get("required"))["properties"][main]["const"]
    lines = [f"  {name}.{main} = {default}"]
    lines.append(f"      one of {', '.join(parts)}, or your own class: ./file.py:Class")
    usual = parts[default]
    common = [key for key in usual if all(key in properties for properties in parts.values())]
    lines += [line for key in common for line in _key(f"{name}.{key}", usual[key])]
    for chosen, properties in parts.items():
        # An implementation may have another default for a common key.
        same = {key for key in common if _key(key, properties[key]) == _key(key, usual[key])}
        lines += _of_part(name, main, chosen, properties, same)
    return lines


def _of_part(section: str, main: str, name: str, properties: Schema, without: set[str]) -> list[str]:
    """Describe the keys that only one implementation has."""
    own = [key for key in properties if key not in without]
    if not own:
        return []
    head = f"    with {section}{f'.{main}' if main else ''}={name}:"
    return [head, *(f"  {line}" for key in own for line in _key(f"{section}.{key}", properties[key]))]


def _key(key: str, about: Schema) -> list[str]:
    value = about.get("default", about.get("const"))
    shown = "none" if value is None else json.dumps(value, ensure_ascii=False)
    if isinstance(value, str) and value:
        shown = value
    choices = f" [{'|'.join(str(each) for each in about['enum'])}]" if "enum" in about else ""
    return [f"  {key} = {shown}{choices}", f"      {about.get('description', '')}"]
