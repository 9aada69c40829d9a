"""A recipe: a table or figure of a paper at several scales (see docs/recipes.md).

Reading recipes needs neither PyTorch nor the parts of the config, so that `fedssl list recipes` is fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fedssl.errors import ConfigError, did_you_mean
from fedssl.options import Options
from fedssl.papers.files import find, read, recipe_files
from fedssl.tables import table
from fedssl.tables.table import ONLY_COLUMN, Figure, Ordering, Table, as_measure, build, check, layers

Scale = Literal["smoke", "mini", "midi", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "mini", "midi", "paper")


class _Scaled(table.Axis):
    """Fields of a recipe's rows and columns in addition to those of a table."""

    scale: dict[Scale, dict[str, Any]] = Field(
        {}, description="additional keys at one scale; `measure` as for the row or column"
    )
    scales: tuple[Scale, ...] = Field(SCALES, description="the scales that include it")

    def at(self, scale: Scale) -> dict[str, Any]:
        """Return the fields of a table's row or column at one scale."""
        from fedssl.tables.cells import overlay

        kept = self.model_dump(exclude={"scale", "scales", "config", "measure"})
        keys = dict(self.scale.get(scale, {}))
        measure = layers(self.measure, as_measure(keys.pop("measure", {})))
        return {**kept, "measure": measure, "config": overlay(overlay({}, self.config), keys)}


class Column(_Scaled, table.Column):
    """One column of the recipe."""


class Row(_Scaled, table.Row):
    """One row of the recipe."""


class Recipe(Options):
    """What to run, the paper's numbers, and its claims."""

    name: str
    file: Path
    title: str
    paper: str = Field("", description="which paper")
    source: str = Field("", description="which table or figure of the paper")
    notes: str = Field("", description="notes for readers of the numbers")
    measure: dict[str, Any] = Field({}, description="what the numbers measure; default: the linear probe")
    base: dict[str, Any] = Field({}, description="keys of all cells")
    scale: dict[Scale, dict[str, Any]] = Field(
        {}, description="additional keys at one scale; `measure` as for the recipe"
    )
    scales: tuple[Scale, ...] = Field(SCALES, description="the scales it can run at")
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    orderings: tuple[Ordering, ...] = ()
    figure: Figure | None = None

    def at(self, scale: Scale) -> Table:
        """Return the recipe's table at one scale."""
        from fedssl.tables.cells import overlay

        keys = dict(self.scale.get(scale, {}))
        measure = layers(self.measure, as_measure(keys.pop("measure", {})))
        return Table(
            name=self.name,
            origin=self.file.name,
            title=self.title,
            source=self.source,
            paper=self.paper,
            notes=self.notes,
            scale=scale,
            command=f"fedssl reproduce {self.name} --scale {scale}",
            measure=measure,
            base=overlay(overlay({}, self.base), keys),
            columns=tuple(table.Column(**part.at(scale)) for part in self.columns if scale in part.scales),
            rows=tuple(table.Row(**part.at(scale)) for part in self.rows if scale in part.scales),
            orderings=self.orderings,
            figure=self.figure,
        )


# --- reading ------------------------------------------------------------------------------------

KEYS = ("title", "paper", "source", "notes", "extends", "measure", "base", "scale", "scales")
TABLES = ("column", "row", "ordering", "figure")


def titles() -> dict[str, str]:
    """Return every recipe with its title; files without rows only exist to be extended."""
    found = {name: read(file) for name, file in recipe_files().items()}
    return {name: _heading(values) for name, values in found.items() if "row" in values}


def load(name: str) -> Recipe:
    """Load a recipe by name, or from your own TOML file."""
    file = find(name, titles)
    values = _extended(file)
    where = file.name
    for key in values:
        if key not in KEYS + TABLES:
            raise ConfigError(f"{where}: unknown key {key!r}: {did_you_mean(key, KEYS + TABLES)}")
    if not values.get("row"):
        raise ConfigError(f"{where}: a recipe needs at least one [[row]]")
    head = {key: value for key, value in values.items() if key in KEYS and key != "extends"}
    head["measure"] = as_measure(values.get("measure", {}))
    recipe: Recipe = build(
        Recipe,
        {
            **head,
            "name": file.stem,
            "file": file,
            "columns": _parts(Column, values.get("column", [{"name": ONLY_COLUMN}]), f"{where}: column"),
            "rows": _parts(Row, values["row"], f"{where}: row"),
            "orderings": _parts(Ordering, values.get("ordering", []), f"{where}: ordering"),
            "figure": build(Figure, values["figure"], f"{where}: figure") if "figure" in values else None,
        },
        where,
    )
    check(recipe.rows, recipe.columns, recipe.measure, recipe.orderings, recipe.figure, where)
    return recipe


def _extended(file: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Merge the file's values over those of the file it extends."""
    values = read(file)
    if "extends" not in values:
        return values
    under = find(str(values["extends"]), recipe_files, beside=file.parent)
    if under in (file, *above):
        raise ConfigError(f"{file.name}: extends {under.name}, which extends it in turn")
    return _over(_extended(under, (file, *above)), values)


def _over(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[key] = _over(below, value) if both else value  # type: ignore[arg-type]
    return merged


def _heading(values: Mapping[str, Any]) -> str:
    source = values.get("source")
    return f"{source}: {values.get('title', '')}" if source else str(values.get("title", ""))


def _parts(part: type[Options], listed: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(listed, list):
        raise ConfigError(f"{where}: write [[{where.rsplit(' ', 1)[-1]}]], with two brackets")
    return tuple(
        build(part, values, f"{where} {values.get('name', number)!r}")
        for number, values in enumerate(listed, start=1)
    )
