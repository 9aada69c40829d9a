"""A Flower grid on this machine, with nodes in Ray's processes."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any

import ray
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedssl.config import Config
from fedssl.data.federation import Federation
from fedssl.engines.flower.client import app as client_app
from fedssl.engines.flower.server import GridClients
from fedssl.engines.runner import ClientRunner
from fedssl.errors import RunError

if TYPE_CHECKING:
    from flwr.proto.node_pb2 import NodeInfo
    from flwr.server.superlink.fleet.vce.backend.backend import BackendConfig


ATTEMPTS = 5


class Simulation(GridClients):
    """Runs Flower's simulation in a thread; its ServerApp passes its grid to the round loop and waits."""

    def __init__(
        self, config: Config, runner: ClientRunner, federation: Federation, tell: Callable[[str], None]
    ) -> None:
        self._grids: Queue[CheckedGrid] = Queue()
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._simulate, args=(config, federation.clients), daemon=True)
        logging.getLogger("flwr").setLevel(logging.ERROR)
        self._thread.start()
        super().__init__(self._grid(), config, runner, federation, tell)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        super().close()

    def _grid(self) -> CheckedGrid:
        while True:
            self._check()
            try:
                return self._grids.get(timeout=0.5)
            except Empty:
                continue

    def _check(self) -> None:
        if not self._thread.is_alive():
            error = self._error
            while error is not None and error.__cause__ is not None:
                error = error.__cause__
            raise RunError(f"Flower's simulation has ended: {error or 'no reason was given'}")

    def _simulate(self, config: Config, clients: int) -> None:
        server = ServerApp()

        @server.main()
        def lend(grid: Grid, context: Context) -> None:
            self._grids.put(CheckedGrid(grid, self._check))
            self._over.wait()

        try:
            start_ray(config)
            run_simulation(server, client_app, clients, backend_config=resources(config))
        except BaseException as error:
            self._error = error


@dataclass(frozen=True)
class CheckedGrid:
    """A grid that raises an error if its simulation has ended, because there would be no more answers."""

    grid: Grid
    check: Callable[[], None]

    def get_nodes(self) -> Iterable[NodeInfo]:
        self.check()
        return self.grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.check()
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.check()
        return self.grid.pull_messages(message_ids)


def start_ray(config: Config) -> None:
    """Start Ray, unless RAY_ADDRESS names a running cluster.

    Ray waits half a minute for its processes to start, which may be too short on a busy machine, so retry.
    """
    cores = config.engine.workers * config.engine.threads
    own: dict[str, Any] = {"num_cpus": cores, "include_dashboard": False}
    for attempt in range(1, ATTEMPTS + 1):
        try:
            ray.init(
                log_to_driver=False,
                logging_level=logging.ERROR,
                **({} if os.environ.get("RAY_ADDRESS") else own),
            )
            return
        except Exception as error:
            ray.shutdown()
            if attempt == ATTEMPTS or "timed out during startup" not in str(error):
                raise


def resources(config: Config) -> BackendConfig:
    """Configure one process per worker, each with the threads of a client."""
    gpus = 1.0 / config.engine.workers if config.device.startswith("cuda") else 0.0
    return {"client_resources": {"num_cpus": config.engine.threads, "num_gpus": gpus}}
