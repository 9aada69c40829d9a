"""Typed options: every exchangeable part is a frozen pydantic model with config keys as fields.

    class FedProx(FedAvg):
        mu: float = Field(0.2, ge=0, description="strength of the pull toward the global model")

defines the part, documents `method.mu`, and validates it.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedssl.errors import ConfigError, did_you_mean
from fedssl.registry import Registry


class Options(BaseModel):
    """Immutable options whose fields are config keys; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Choice(Options):
    """A part that is chosen by name."""

    name: str = Field("", description="its name in `fedssl list`")


def choose(registry: Registry, values: dict[str, Any], section: str, key: str = "name") -> Any:
    """Build the part that `values[key]` names from the other values."""
    if key not in values:
        raise ConfigError(f"{section}.{key} is missing: one of {', '.join(registry)}")
    name = registry.canonical(str(values[key]))
    return build(registry.get(name), {**values, key: name}, section)


def build(part: type[Options], values: dict[str, Any], section: str) -> Any:
    """Validate `values` as options of `part`; errors name the key as a user writes it."""
    try:
        return part(**values)
    except ValidationError as error:
        raise ConfigError(explain(error, part, section)) from None


def explain(error: ValidationError, part: type[BaseModel], section: str) -> str:
    """Describe the first validation error: the key as the user writes it, its value, and the problem."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    full = f"{section}.{key}" if section else key
    if first["type"] == "extra_forbidden":
        owner = f" of {section}" if section else ""
        return f"unknown key {full!r}{owner}: {did_you_mean(key, part.model_fields)}"
    problem = first["msg"]
    if first["type"] == "literal_error" and isinstance(first.get("input"), str):
        allowed = str(first["ctx"]["expected"]).replace("' or '", "', '").replace("'", "")
        problem = did_you_mean(first["input"], [word.strip() for word in allowed.split(",")])
    return f"{full}={first.get('input')!r}: {problem}"
