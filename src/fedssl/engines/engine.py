"""What every engine has in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from fedssl.options import Choice

if TYPE_CHECKING:
    from fedssl.config import Config
    from fedssl.data.federation import Federation
    from fedssl.engines.loop import Clients, RoundLoop
    from fedssl.engines.runner import ClientRunner


class Engine(Choice):
    """Where the clients of a round run, and what goes on between rounds."""

    # Whether a run gives the same bits here as on the local engine. If not, its options are part of what
    # a run is, and not only of how it is done.
    like_local: ClassVar[bool] = True
    HOW: ClassVar[tuple[str, ...]] = ("workers", "threads", "cache_mb")

    name: str = Field("local", description="who runs the loop (see `fedssl list engines`)")
    workers: int = Field(1, ge=1, description="processes that train clients")
    threads: int = Field(0, ge=0, description="threads one client trains with; 0: cores ÷ workers")
    cache_mb: int = Field(512, ge=0, description="client memories kept in memory, per process")

    def clients(self, config: Config, runner: ClientRunner, federation: Federation) -> Clients:
        """Where clients run: in this process, or in workers."""
        from fedssl.engines.local import InProcess
        from fedssl.engines.workers import Workers

        if self.workers > 1:
            return Workers(config, federation, runner.memories.folder)
        return InProcess(runner)

    def loop(
        self, config: Config, runner: ClientRunner, federation: Federation, clients: Clients
    ) -> RoundLoop:
        """The rounds: by default those of a server."""
        from fedssl.engines.loop import RoundLoop

        return RoundLoop(config, runner.model, federation.clients, clients, runner.memories)

    def identity(self) -> dict[str, Any]:
        """What of the engine makes a difference to the numbers of a run."""
        return {} if self.like_local else self.model_dump(exclude=set(self.HOW))
