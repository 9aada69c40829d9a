"""Runs all attacks on a run, and writes the results."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedssl.audit.canaries import audit_canaries
from fedssl.audit.files import ATTACKS, FILE, FOLDER
from fedssl.audit.inversion import audit_inversion
from fedssl.audit.membership import audit_membership
from fedssl.audit.pictures import draw_canaries, draw_inversion, draw_membership
from fedssl.audit.words import sentences
from fedssl.errors import ConfigError, RunError
from fedssl.evaluation.loaded import LoadedRun, load_run
from fedssl.rundir import RunDir
from fedssl.storage import read_json, write_json
from fedssl.threads import with_threads


@dataclass(frozen=True)
class Effort:
    """The effort of the attacks.

    Attributes:
        images: number of members, and of other images, in the membership attack.
        batch: number of images of the update that is inverted.
        steps: steps of the inversion.
    """

    images: int = 500
    batch: int = 1
    steps: int = 1000

    def __post_init__(self) -> None:
        for name, least in (("images", 40), ("batch", 1), ("steps", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"--{name} {getattr(self, name)}: at least {least}")


def audit(
    directory: RunDir, attacks: tuple[str, ...] = ATTACKS, effort: Effort | None = None
) -> dict[str, Any]:
    """Attack a finished run, and write what was found to `RUN/privacy-audit`.

    Args:
        directory: the run's folder.
        attacks: which attacks.
        effort: the effort of each attack.

    Returns:
        By attack, its numbers and their interpretation; or `why_not`.
    """
    if not directory.result_file.exists():
        raise RunError(f"{directory.path} has not finished: `fedssl resume {directory.path}`")
    effort, folder = effort or Effort(), directory.path / FOLDER
    run = load_run(directory, {})
    file, found = folder / FILE, dict[str, Any]()
    folder.mkdir(exist_ok=True, mode=0o700)  # pictures show images of clients
    with with_threads(0):
        for attack in attacks:
            found[attack] = _attack(attack, run, effort, folder / f"{attack}.png")
            found[attack] |= {"words": sentences(attack, found[attack], run.trained)}
    earlier = read_json(file) if file.exists() else {}
    write_json(file, {**earlier, **found})
    return found


def _attack(name: str, run: LoadedRun, effort: Effort, picture: Path) -> dict[str, Any]:
    """The numbers of one attack; its picture is written if there is something to show."""
    picture.unlink(missing_ok=True)
    if not run.trained.engine.sees_clients and name != "canaries":
        return {"why_not": "The images are at the sites: audit a simulation with the same settings."}
    if name == "canaries":
        found = audit_canaries(run)
        if "why_not" not in found:
            draw_canaries(found, picture)
    elif name == "membership":
        found = audit_membership(run, effort.images)
        if "why_not" not in found:
            draw_membership(found, picture)
    else:
        inversion = audit_inversion(run, effort.batch, effort.steps)
        found = inversion.numbers
        if inversion.pixels:
            draw_inversion(inversion.pixels, picture)
    return found
