"""Formats the result of `fedssl eval --protocol detection`."""

from __future__ import annotations

from typing import Any

from rich.table import Table


def detection_table(found: dict[str, Any]) -> Table:
    """Format average precision next to that of the same detector from scratch, then by class."""
    table = Table(
        title=f"detection, encoder: {found['model']}",
        title_justify="left",
        caption=found["images"],
        caption_justify="left",
    )
    table.add_column("")
    for column in ("AP", "AP50", "AP75", "AP from scratch", "gain"):
        table.add_column(column, justify="right")
    kinds = [kind for kind in ("box", "mask") if kind in found]
    for kind in kinds:
        own, scratch = found[kind], found["untrained"][kind]
        numbers = [f"{own[name]:.1%}" for name in ("ap", "ap50", "ap75")]
        table.add_row(kind, *numbers, f"{scratch['ap']:.1%}", f"{100 * (own['ap'] - scratch['ap']):+.1f}")
    for row in found["per_class"]:
        for kind in kinds:
            table.add_row(f"{kind}, {row['class']}", f"{row[kind]:.1%}")
    return table
