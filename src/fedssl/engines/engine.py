"""The base class of engines."""

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
    """Base class of engines: where the clients of a round run."""

    # Whether runs give the same bits as on the local engine. If not, the options belong to a run's identity.
    like_local: ClassVar[bool] = True
    has_server: ClassVar[bool] = True  # without one, ServerState.nodes has a model for every client
    HOW: ClassVar[tuple[str, ...]] = ("workers", "threads", "wave", "cache_mb")

    name: str = Field("local", description="engine (see `fedssl list engines`)")
    workers: int = Field(
        1,
        ge=1,
        le=1024,
        description="number of worker processes; a round of one client uses the main process",
    )
    threads: int = Field(0, ge=0, le=1024, description="threads per client; 0: cores ÷ workers")
    wave: int = Field(
        0,
        ge=0,
        le=1024,
        description="clients that train at the same time; fewer clients share the same threads; "
        "0: workers, or 1 if `threads` is set",
    )
    cache_mb: int = Field(32, ge=0, le=1 << 24, description="cache of client memories in MB, per process")

    @property
    def all_threads(self) -> int:
        """Threads for a client or a probe that runs alone; 0: not resolved yet."""
        return self.threads * (self.wave or 1)

    def with_machine_defaults(self, cores: int) -> Self:
        """The engine with threads and wave filled in for a machine with `cores` cores."""
        threads = self.threads or max(1, cores // self.workers)
        # With more workers than cores, a wave has no more clients than there are cores.
        wave = self.wave or (1 if self.threads else self.default_wave(max(1, cores // threads)))
        return self.model_copy(update={"threads": threads, "wave": wave})

    def default_wave(self, most: int) -> int:
        """The default of `wave`: at most `most` clients."""
        return min(self.workers, most)

    @property
    def sees_clients(self) -> bool:
        """Whether the clients' images and memories are on this machine."""
        return True

    def describe_split(self, config: Config) -> str:
        """Describe how images are distributed, for the run's summary."""
        if config.method.pools_data:
            return "all images in one place"
        return f"partition {config.partition.scheme}"

    def federation(self, config: Config, progress: Progress | None = None) -> Federation:
        """Load the images and distribute them among clients."""
        from fedssl.data.federation import federate

        return federate(config, progress)

    def memories(self, folder: Path) -> MemoryStore:
        """The store of client memories."""
        from fedssl.engines.memory import MemoryStore

        return MemoryStore(folder, self.cache_mb)

    def clients(self, config: Config, runner: ClientRunner, federation: Federation) -> Clients:
        """Start the clients: worker processes, or this process if no two clients train at the same time."""
        from fedssl.engines.attacked import with_attackers
        from fedssl.engines.local import InProcess
        from fedssl.engines.loop import round_size
        from fedssl.engines.workers import Workers

        processes = min(self.workers, sum(round_size(config.participation, federation.clients)))
        if processes > 1:
            return with_attackers(Workers(config, federation, runner.memories.folder, processes), runner)
        return with_attackers(InProcess(runner), runner)

    def loop(
        self, config: Config, runner: ClientRunner, federation: Federation, clients: Clients
    ) -> RoundLoop:
        """The round loop: by default with a server."""
        from fedssl.engines.anchor import Anchor
        from fedssl.engines.loop import RoundLoop

        memories, guard = runner.memories, runner.guard()
        return RoundLoop(config, runner.model, federation, clients, memories, guard, Anchor.of(runner))

    def identity(self) -> dict[str, Any]:
        """The options that change the numbers of a run."""
        return {} if self.like_local else self.model_dump(exclude=set(self.HOW))
