"""privacy: plans a privacy budget before a run."""

from __future__ import annotations

import argparse
import math

from fedssl.commands.command import Command


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="*", metavar="[CONFIG.toml] key=value", help="a config, then overrides: rounds, …"
    )
    parser.add_argument("--clients", type=int, default=0, metavar="N", help="default: partition.clients")
    parser.add_argument(
        "--images", type=int, default=0, metavar="N", help="of the smallest client (privacy.mode=example)"
    )


def _plan(options: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    from fedssl.config import load, parse_overrides
    from fedssl.privacy.accountant import require_accountant
    from fedssl.privacy.plan import plan

    first = options.words[:1]
    file = first[0] if first and "=" not in first[0] else None
    config = load(file, parse_overrides(options.words[1:] if file else options.words))
    require_accountant("fedssl privacy")
    found = plan(config, options.clients, options.images)
    console = Console(highlight=False)
    console.print(found.heading)
    table = Table(title="ε by noise multiplier (privacy.noise)", title_justify="left")
    for column in found.columns:
        table.add_column(column, justify="right")
    for noise, *spent in found.rows:
        table.add_row(f"{noise:g}", *(_number(value) for value in spent))
    console.print(table)
    needed = Table(
        title=f"noise that a budget (privacy.epsilon) needs for {config.rounds:,} rounds",
        title_justify="left",
    )
    needed.add_column("ε", justify="right")
    needed.add_column("noise", justify="right")
    by_example = config.privacy.by_example
    needed.add_column(f"in each number of {'a gradient' if by_example else 'the model'}", justify="right")
    for budget, noise in found.needed.items():
        needed.add_row(f"{budget:g}", f"{noise:.3g}", f"{noise * config.privacy.clip / found.shared:.2g}")
    console.print(needed)
    unit = "one image" if by_example else "one whole client"
    console.print(f"privacy.clip={config.privacy.clip:g}; ε holds for {unit}, added or removed")


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


COMMANDS = {
    "privacy": Command(
        "plan a privacy budget: ε for a noise level, or noise for an ε", _plan_arguments, _plan
    ),
}
