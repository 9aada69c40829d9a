"""Adapt a trained federation to new clients with new domains (PaDPaF, appendix C.2.1)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from fedssl import experiment
from fedssl.config import load
from fedssl.engines.checkpoint import Checkpoints
from fedssl.engines.memory import MemoryStore
from fedssl.evaluation.loaded import load_run
from fedssl.generative.grids import Grid, Labels
from fedssl.generative.sampling import ClientGenerators
from fedssl.generative.use import Use
from fedssl.listener import Listener
from fedssl.rundir import RunDir


class Adapt(Use):
    """Start a new run from the trained server state, with new clients.

    The run is in the folder `adapted-ROUNDS`, and can be resumed and reported like any other.
    """

    rounds: int = Field(25, ge=1, description="communication rounds")
    clients: int = Field(3, ge=1, description="number of new clients")
    shift: str = Field("padpaf-new", description="the new clients' shift (see `fedssl list shifts`)")

    def apply(self, generators: ClientGenerators, folder: Path) -> dict[str, Any]:
        # `rounds` is part of the name already, so it does not count as a changed option.
        others = self.model_copy(update={"rounds": type(self).model_fields["rounds"].default})
        path = others.file(folder, f"adapted-{self.rounds}", "")
        directory = RunDir.open(path) if (path / "config.toml").exists() else self._create(generators, path)
        experiment.resume(path, Listener())
        new = ClientGenerators(load_run(directory, {}))
        found: dict[str, Any] = {"run": str(path), "rounds": self.rounds}
        found |= Grid(name="grid").apply(new, path)  # in its own folder: the trained run has a grid, too
        if new.classes:
            found |= Labels(name="labels").apply(new, path)
        return found

    def _create(self, generators: ClientGenerators, path: Path) -> RunDir:
        """Create a run directory at round 0 with the trained server state."""
        keys = {
            "rounds": self.rounds,
            "shift": {"name": self.shift},
            "partition.clients": self.clients,
            "partition.workers": 0,
        }
        # Write the config last: it marks the folder as a run. A process that is killed before that starts
        # over, instead of resuming from an untrained server.
        checkpoints = path / "checkpoints"
        writer = Checkpoints(checkpoints, 0, MemoryStore(checkpoints / "clients", 0))
        writer.save(0, replace(generators.run.server.seen_by(0), memory={}, values={}), {})
        writer.wait()
        return RunDir.create(path, load(generators.run.trained.to_dict(), keys))
