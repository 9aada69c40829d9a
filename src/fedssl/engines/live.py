"""A run assembled in this process: images, network, client memories, runner, and the server's last state.

Training, worker processes, Flower sites and evaluation all assemble runs with this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from fedssl.config import Config
from fedssl.data.federation import Federation
from fedssl.engines.checkpoint import Checkpoint, Checkpoints
from fedssl.engines.local import InProcess
from fedssl.engines.loop import Clients
from fedssl.engines.memory import MemoryStore
from fedssl.engines.network import build_network
from fedssl.engines.recalibration import Recalibration, out_of_reach, stored_at
from fedssl.engines.round_report import RoundReport
from fedssl.engines.runner import ClientRunner
from fedssl.engines.start import FILE
from fedssl.engines.tasks import Outcome, Task
from fedssl.progress import Progress
from fedssl.state import ServerState


class LiveRun:
    """The parts of a run that every participating process has.

    Args:
        config: the run's config.
        federation: the images, and their assignment to clients.
        memories: the client memories.
        classes: number of classes that the network is built for; None: those of the images.
        start: the run's copy of the weights of `model.init`.
    """

    def __init__(
        self,
        config: Config,
        federation: Federation,
        memories: MemoryStore,
        classes: int | None = None,
        start: Path | None = None,
    ) -> None:
        images = federation.train
        self.config, self.federation, self.memories = config, federation, memories
        classes = len(images.classes) if classes is None else classes
        self.network = build_network(config, images.size, images.channels, classes, start)
        self.runner = ClientRunner(config, federation, self.network, memories)

    @property
    def device(self) -> torch.device:
        return self.runner.device


class ServerRun(LiveRun):
    """A run with its checkpoints, in the server's process or loaded after its end.

    Attributes:
        round: the last round that `server` has seen; 0 before the first.
        server: the server's state after that round.
        memory_rounds: for every client with a memory, the round that wrote it.
    """

    def __init__(
        self,
        config: Config,
        checkpoints: Path,
        keep: int = 0,
        progress: Progress | None = None,
        find: Callable[[Checkpoints], Checkpoint | None] = Checkpoints.latest,
    ):
        """Load the images and a checkpoint.

        Args:
            config: the run's config.
            checkpoints: the folder of the run's checkpoints and client memories.
            keep: checkpoints to keep when new ones are written; 0: all.
            progress: called while images are loaded.
            find: chooses the checkpoint; by default the last one.
        """
        engine = config.engine
        memories = engine.memories(checkpoints / "clients")
        super().__init__(config, engine.federation(config, progress), memories, start=checkpoints / FILE)
        self.checkpoints = Checkpoints(checkpoints, keep, memories)
        found = find(self.checkpoints) or Checkpoint(0, self.runner.first_server(), {})
        self.round, self.server, self.memory_rounds = found.round, found.server, found.memory_rounds
        # Clients on this machine can be asked at any time, sites only while the run trains.
        self._clients: Clients | None = InProcess(self.runner) if engine.sees_clients else None
        self.recalibration = Recalibration(
            self.runner, self.ask, None if engine.sees_clients else stored_at(checkpoints)
        )

    def ask(self, tasks: Sequence[Task]) -> Iterable[Outcome]:
        """Run tasks at the clients; those at sites can be asked while the run trains."""
        return out_of_reach(tasks) if self._clients is None else self._clients.run(tasks)

    def train(
        self, after_round: Callable[[RoundReport], bool], before_leaving: Callable[[], None] = lambda: None
    ) -> None:
        """Run the remaining rounds.

        Args:
            after_round: called after every round, when `round`, `server` and `memory_rounds` are up to date;
                returns whether the run stops.
            before_leaving: called after the last round, while clients at sites can still be asked.
        """
        config, engine = self.config, self.config.engine
        clients = engine.clients(config, self.runner, self.federation)
        if not engine.sees_clients:
            self._clients = clients
        try:
            loop = engine.loop(config, self.runner, self.federation, clients)
            self.memories.rewind(self.round)
            self.checkpoints.remove_after(self.round)
            loop.memory_rounds = self.memory_rounds

            def follow(report: RoundReport, server: ServerState) -> bool:
                # A copy: an interrupted round leaves no trace in it.
                self.round, self.server, self.memory_rounds = report.round, server, dict(loop.memory_rounds)
                return after_round(report)

            self.server = loop.run(self.server, self.round, follow)
            self.checkpoints.wait()
            before_leaving()
        finally:
            clients.close()
            if not engine.sees_clients:
                self._clients = None

    def save(self) -> None:
        """Write a checkpoint in the background.

        With noise it is on disk before the model is sent: otherwise a site that is away when the round is
        repeated would show, by the difference of two models with the same noise, what it had sent.
        """
        self.checkpoints.save(self.round, self.server, self.memory_rounds)
        if self.config.privacy.by_client:
            self.checkpoints.wait()
