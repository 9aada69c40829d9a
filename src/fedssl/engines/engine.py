"""What every engine has in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field

from fedssl.options import Choice

if TYPE_CHECKING:
    from pathlib import Path

    from fedssl.config import Config
    from fedssl.data.federation import Federation
    from fedssl.engines.loop import Clients, RoundLoop
    from fedssl.engines.memory import MemoryStore
    from fedssl.engines.runner import ClientRunner
    from fedssl.progress import Progress


class Engine(Choice):
    """Where the clients of a round run, and what goes on between rounds."""

    # Whether a run gives the same bits here as on the local engine. If not, its options are part of what
    # a run is, and not only of how it is done.
    like_local: ClassVar[bool] = True
    has_server: ClassVar[bool] = True  # without one, ServerState.nodes has a model for every client
    HOW: ClassVar[tuple[str, ...]] = ("workers", "threads", "wave", "cache_mb")

    name: str = Field("local", description="who runs the loop (see `fedssl list engines`)")
    workers: int = Field(
        1, ge=1, description="processes that train clients; if a round has one client, the main one does"
    )
    threads: int = Field(0, ge=0, description="threads one client trains with; 0: cores ÷ workers")
    wave: int = Field(
        0,
        ge=0,
        description="clients that train at once; where fewer do, they share the threads of all; "
        "0: workers, or 1 (every client has `threads`) where `threads` is set",
    )
    cache_mb: int = Field(32, ge=0, description="client memories kept in memory, per process")

    @property
    def all_threads(self) -> int:
        """For a client, or a probe, that is the only one at work; 0: it is not settled how many."""
        return self.threads * (self.wave or 1)

    def with_machine_defaults(self, cores: int) -> Self:
        """The engine with threads and wave filled in for a machine with so many cores."""
        threads = self.threads or max(1, cores // self.workers)
        # Threads beyond the cores would wait for each other: with more workers than cores a wave is smaller.
        wave = self.wave or (1 if self.threads else self.default_wave(max(1, cores // threads)))
        return self.model_copy(update={"threads": threads, "wave": wave})

    def default_wave(self, most: int) -> int:
        """How many clients share all threads where nobody says so."""
        return min(self.workers, most)

    @property
    def sees_clients(self) -> bool:
        """Whether the clients' images and memories are on this machine."""
        return True

    def describe_split(self, config: Config) -> str:
        """How clients came by their images, in words."""
        if config.method.pools_data:
            return "all images in one place"
        return f"partition {config.partition.scheme}"

    def federation(self, config: Config, progress: Progress | None = None) -> Federation:
        """The images, and who has which."""
        from fedssl.data.federation import federate

        return federate(config, progress)

    def memories(self, folder: Path) -> MemoryStore:
        """What clients keep between rounds."""
        from fedssl.engines.memory import MemoryStore

        return MemoryStore(folder, self.cache_mb)

    def clients(self, config: Config, runner: ClientRunner, federation: Federation) -> Clients:
        """Where clients run: in workers, or in this process where no two of them train at once."""
        from fedssl.engines.local import InProcess
        from fedssl.engines.loop import round_size
        from fedssl.engines.workers import Workers

        processes = min(self.workers, sum(round_size(config.participation, federation.clients)))
        if processes > 1:
            return Workers(config, federation, runner.memories.folder, processes)
        return InProcess(runner)

    def loop(
        self, config: Config, runner: ClientRunner, federation: Federation, clients: Clients
    ) -> RoundLoop:
        """The rounds: by default those of a server."""
        from fedssl.engines.loop import RoundLoop

        return RoundLoop(config, runner.model, federation, clients, runner.memories)

    def identity(self) -> dict[str, Any]:
        """What of the engine makes a difference to the numbers of a run."""
        return {} if self.like_local else self.model_dump(exclude=set(self.HOW))
