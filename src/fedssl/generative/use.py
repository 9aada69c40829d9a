"""Uses of a run's generators: `fedssl generate RUN WHAT key=value`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedssl.errors import ConfigError, did_you_mean
from fedssl.evaluation.loaded import load_run
from fedssl.generative.sampling import ClientGenerators
from fedssl.options import Choice, build
from fedssl.registry import Registry
from fedssl.rundir import RunDir
from fedssl.threads import with_threads

USES = Registry(
    "use",
    {
        "grid": "fedssl.generative.grids:Grid",
        "clients": "fedssl.generative.grids:AcrossClients",
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
    """Base class of what `fedssl generate` does with a run's generators; its fields are its options."""

    def apply(self, generators: ClientGenerators, folder: Path) -> dict[str, Any]:
        """Compute results by name, and write pictures into the folder."""
        raise TypeError(f"{type(self).__name__} does not define apply")

    def file(self, folder: Path, name: str, ending: str = ".png") -> Path:
        """A file for results, with a name that depends on the options that are not the defaults.

        Uses of a run with different options therefore do not overwrite each other's files.
        """
        own = {key: value for key, value in self.model_dump().items() if key not in ("name", "to")}
        changed = {key: value for key, value in own.items() if value != type(self).model_fields[key].default}
        tail = f"-{hashlib.sha256(json.dumps(changed).encode()).hexdigest()[:8]}" if changed else ""
        return folder / f"{name}{tail}{ending}"


def choose_use(what: str, options: Mapping[str, Any]) -> Use:
    """The use of this name with its options, or a ConfigError that suggests similar names."""
    if what not in USES:
        raise ConfigError(f"unknown use {what!r}: {did_you_mean(what, USES)}")
    use: Use = build(USES.get(what), {"name": what, **options}, what)
    return use


def generate(
    directory: RunDir, what: str, options: Mapping[str, Any], out: str | Path | None = None
) -> dict[str, Any]:
    """Apply a use to a run's generators, and append the results to its generated.jsonl.

    Args:
        directory: the run.
        what: a key of USES.
        options: the use's options.
        out: the folder for pictures; None: `generated` in the run's folder.

    Returns:
        The results by name.
    """
    use = choose_use(what, options)
    folder = Path(out) if out is not None else directory.path / "generated"
    with with_threads(0):
        generators = ClientGenerators(load_run(directory, {}))
        folder.mkdir(parents=True, exist_ok=True)
        found = use.apply(generators, folder)
    with open(directory.path / "generated.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"what": what, "options": dict(options), "found": found}) + "\n")
    return found
