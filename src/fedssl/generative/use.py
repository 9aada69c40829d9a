"""What can be done with the generators of a run: `fedssl generate RUN WHAT key=value`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedssl.errors import ConfigError, did_you_mean
from fedssl.evaluation.loaded import load_run
from fedssl.generative.sampling import Studio
from fedssl.options import Choice, build
from fedssl.registry import Registry
from fedssl.rundir import RunDir
from fedssl.threads import with_threads

USES = Registry(
    "use",
    {
        "grid": "fedssl.generative.grids:Grid",
        "clients": "fedssl.generative.grids:Across",
        "labels": "fedssl.generative.grids:Labels",
        "fid": "fedssl.generative.fid:FID",
        "diversity": "fedssl.generative.diversity:Diversity",
        "probe": "fedssl.generative.probing:Probe",
        "predict-client": "fedssl.generative.probing:PredictClient",
        "restyle": "fedssl.generative.restyle:Restyle",
        "anonymize": "fedssl.generative.restyle:Anonymize",
        "reidentify": "fedssl.generative.reidentify:Reidentify",
        "adapt": "fedssl.generative.adapt:Adapt",
        "simpson": "fedssl.papers.simpson.fit:Simpson",
    },
)


class Use(Choice):
    """One thing to do with a run's generators; its fields are its options."""

    def do(self, studio: Studio, folder: Path) -> dict[str, Any]:
        """Numbers, with what they are numbers of; pictures go into the folder."""
        raise TypeError(f"{type(self).__name__} does not say what it does")

    def file(self, folder: Path, name: str, ending: str = ".png") -> Path:
        """Where something it makes is kept, named by the options that are not the defaults.

        So two tables that ask the same of a run with other options do not overwrite each other.
        """
        own = {key: value for key, value in self.model_dump().items() if key not in ("name", "to")}
        changed = {key: value for key, value in own.items() if value != type(self).model_fields[key].default}
        tail = f"-{hashlib.sha256(json.dumps(changed).encode()).hexdigest()[:8]}" if changed else ""
        return folder / f"{name}{tail}{ending}"


def generate(
    directory: RunDir, what: str, options: Mapping[str, Any], out: str | Path | None = None
) -> dict[str, Any]:
    """Do one thing with a run, and note in its generated.jsonl what was found; pictures lie in `out`."""
    if what not in USES:
        raise ConfigError(f"nothing to generate by the name {what!r}: {did_you_mean(what, USES)}")
    use: Use = build(USES.get(what), {"name": what, **options}, what)
    folder = Path(out) if out is not None else directory.path / "generated"
    with with_threads(0):
        studio = Studio(load_run(directory, {}))
        folder.mkdir(parents=True, exist_ok=True)
        found = use.do(studio, folder)
    with open(directory.path / "generated.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"what": what, "options": dict(options), "found": found}) + "\n")
    return found
