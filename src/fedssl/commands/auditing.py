"""audit: attacks a finished run, to measure what it reveals about its clients."""

from __future__ import annotations

import argparse

from fedssl.commands.command import Command, trust_argument


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="the run's folder")
    parser.add_argument(
        "--only",
        default="",
        metavar="NAMES",
        help="attacks, separated by commas: canaries, membership, inversion (default: all)",
    )
    parser.add_argument(
        "--images", type=int, default=500, metavar="N", help="images of the membership attack (default 500)"
    )
    parser.add_argument(
        "--batch", type=int, default=1, metavar="N", help="images of the upload to invert (default 1)"
    )
    parser.add_argument(
        "--steps", type=int, default=1000, metavar="N", help="steps of the inversion (default 1000)"
    )
    trust_argument(parser)


def _audit(options: argparse.Namespace) -> None:
    from fedssl.audit.audit import Effort, audit
    from fedssl.audit.files import ATTACKS, FOLDER, TITLES
    from fedssl.errors import ConfigError, did_you_mean
    from fedssl.rundir import RunDir

    chosen = tuple(name.strip() for name in options.only.split(",") if name.strip()) or ATTACKS
    for name in chosen:
        if name not in ATTACKS:
            raise ConfigError(f"--only {name}: {did_you_mean(name, ATTACKS)}")
    directory = RunDir.open(options.run)
    effort = Effort(options.images, options.batch, options.steps)
    for name, found in audit(directory, chosen, effort).items():
        print(f"\n{TITLES[name]}")
        for sentence in found["words"]:
            print(f"  {sentence}")
    print(f"\nwrote {directory.path / FOLDER}; `fedssl report {directory.path}` shows it with pictures")


COMMANDS = {
    "audit": Command("attack a finished run: canaries, membership, inversion", _arguments, _audit),
}
