"""Take a trained federation to new clients with looks of their own (PaDPaF, appendix C.2.1)."""

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
from fedssl.generative.sampling import Studio
from fedssl.generative.use import Use
from fedssl.listener import Listener
from fedssl.rundir import RunDir


class Adapt(Use):
    """A new run whose server begins with what was trained here, and whose clients are new.

    It is a run like others, in the folder `adapted`: it can be stopped, resumed and looked at.
    """

    rounds: int = Field(25, ge=1, description="communication rounds")
    clients: int = Field(3, ge=1, description="number of new clients")
    shift: str = Field("padpaf-new", description="their looks (see `fedssl list shifts`)")

    def do(self, studio: Studio, folder: Path) -> dict[str, Any]:
        others = self.model_copy(update={"rounds": type(self).model_fields["rounds"].default})
        path = others.file(folder, f"adapted-{self.rounds}", "")
        directory = RunDir.open(path) if (path / "config.toml").exists() else self._begin(studio, path)
        experiment.resume(path, Listener())
        new = Studio(load_run(directory, {}))
        found: dict[str, Any] = {"run": str(path), "rounds": self.rounds}
        found |= Grid(name="grid").do(new, path)  # in its own folder: the trained run has a grid of its own
        if new.classes:
            found |= Labels(name="labels").do(new, path)
        return found

    def _begin(self, studio: Studio, path: Path) -> RunDir:
        """A run that stands before its first round, with the trained server."""
        keys = {
            "rounds": self.rounds,
            "shift": {"name": self.shift},
            "partition.clients": self.clients,
            "partition.workers": 0,
        }
        # First the server's state, then the config that makes a run of the folder: a run that is killed
        # in between is begun anew, and not resumed from an untrained server.
        checkpoints = path / "checkpoints"
        writer = Checkpoints(checkpoints, 0, MemoryStore(checkpoints / "clients", 0))
        writer.save(0, replace(studio.run.server.seen_by(0), memory={}, values={}), {})
        writer.wait()
        return RunDir.create(path, load(studio.run.trained.to_dict(), keys))
