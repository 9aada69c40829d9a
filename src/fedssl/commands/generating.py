"""generate: uses of a run's generators."""

from __future__ import annotations

import argparse

from fedssl.commands.command import Command, trust_argument


def _generate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the folder of a run with objective.name=gan, conditional-gan, vae, …")
    parser.add_argument(
        "what",
        help="grid, clients, labels: pictures; fid, diversity; probe, predict-client: test features; "
        "restyle, anonymize, reidentify; adapt: to new clients; simpson",
    )
    parser.add_argument(
        "options", nargs="*", metavar="key=value", help="options of WHAT (see docs/generative.md)"
    )
    parser.add_argument("-o", "--out", metavar="FOLDER", help="folder for pictures (default RUN/generated)")
    trust_argument(parser)


def _generate(options: argparse.Namespace) -> None:
    import json

    from fedssl.config import parse_overrides
    from fedssl.generative.use import generate
    from fedssl.rundir import RunDir

    found = generate(RunDir.open(options.run), options.what, parse_overrides(options.options), options.out)
    print(json.dumps(found, indent=2))


COMMANDS = {
    "generate": Command(
        "generate, evaluate and restyle images with a run's generators", _generate_arguments, _generate
    )
}
