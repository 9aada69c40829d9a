"""privacy: what a budget needs, before anything runs."""

from __future__ import annotations

import argparse
import math

from fedssl.commands.command import Command


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="*", metavar="[CONFIG.toml] key=value", help="a config, then overrides: rounds, …"
    )
    parser.add_argument("--clients", type=int, default=0, metavar="N", help="default: partition.clients")


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
    found = plan(config, options.clients)
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
    needed.add_column("in each number of the model", justify="right")
    for budget, noise in found.needed.items():
        needed.add_row(f"{budget:g}", f"{noise:.3g}", f"{noise * config.privacy.clip / found.per_round:.2g}")
    console.print(needed)
    console.print(f"privacy.clip={config.privacy.clip:g}; ε holds for one whole client, added or removed")


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


COMMANDS = {
    "privacy": Command("plan a privacy budget: ε by noise, and noise by ε", _plan_arguments, _plan),
}
