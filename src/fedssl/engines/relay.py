"""Routes through the clients of a round: a model visits several clients before it is aggregated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from fedssl.errors import ConfigError, RunError
from fedssl.methods.method import ServerTools
from fedssl.state import ServerState, Upload

if TYPE_CHECKING:
    from fedssl.config import Config

Routes = Sequence[Sequence[int]]


def find_routes(
    config: Config, number: int, selected: Sequence[int], spares: Sequence[int], tools: ServerTools
) -> Routes:
    """The method's routes through the clients of a round.

    Args:
        config: the run's config.
        number: number of the round, from 1.
        selected: the clients of the round.
        spares: the spare clients.
        tools: what the server aggregates with.

    Raises:
        ConfigError: a setting does not allow passing models between clients.
        RunError: the routes do not contain every client exactly once.
    """
    method = config.method
    routes = method.routes(selected, number, config.seed)
    if sorted(client for route in routes for client in route) != sorted(selected) or not all(routes):
        raise RunError(f"method.name={method.name}: its routes must have every client of a round once")
    if len(routes) < len(selected):
        tools.check_server_sees_uploads("it passes them from client to client")
        if spares:
            raise ConfigError(
                "participation.overshoot is for clients that train at the same time; those of "
                f"method.name={method.name} wait for each other"
            )
    return routes


def stages(routes: Routes) -> Iterator[list[int]]:
    """Group the clients that train in parallel: the first of every route, then the second, and so on."""
    for stage in zip_longest(*routes):
        yield [client for client in stage if client is not None]


class Relay:
    """Passes models from client to client.

    The first client of a route starts from the global model, every other one from the previous client's
    model. A client that fails is skipped: the next one gets the model that it had received.
    """

    def __init__(self, server: ServerState, routes: Routes) -> None:
        self.server = server
        self._route = {client: number for number, route in enumerate(routes) for client in route}
        self._last = {route[-1] for route in routes}
        self._held: dict[int, Upload] = {}  # the current model by route

    def seen_by(self, client: int) -> ServerState:
        """The server from a client's point of view, with the model that the client is to train."""
        server, held = self.server.seen_by(client), self._held.get(self._route.get(client, -1))
        return server if held is None else replace(server, model=held.state)

    def finish(self, client: int, upload: Upload | None) -> Upload | None:
        """Record the model that a client has trained.

        Args:
            client: id of the client.
            upload: its upload; None if it failed.

        Returns:
            The upload to aggregate, if the client is the last of its route: the model, with the images of
            all clients that have trained it. None if the route continues, or no client trained.
        """
        route = self._route.get(client, -1)
        held = self._held.pop(route, None)
        if held is not None and upload is not None:
            upload = replace(upload, num_samples=held.num_samples + upload.num_samples)
        arrived = held if upload is None else upload
        if route < 0 or client in self._last or arrived is None:
            return arrived
        self._held[route] = replace(arrived)  # the loop releases an upload's tensors
        return None
