"""Private tensors are never uploaded and never changed by the server, in all three kinds of model.

The checks are also run on broken methods, to show that a leak makes them fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fedssl.config import Config, load
from fedssl.data.federation import federate
from fedssl.engines.memory import MemoryStore
from fedssl.engines.network import build_network
from fedssl.engines.runner import ClientRunner
from fedssl.engines.tasks import Task
from fedssl.engines.tools import server_tools
from fedssl.methods.client import Client
from fedssl.methods.padpaf import PaDPaF
from fedssl.models.model import Model
from fedssl.state import Broadcast, ServerState, State
from tests.generative.small import KINDS

# By hand, and not from the model's own roles: what PaDPaF keeps at home (section 4.1).
PRIVATE = ("style_", "vectorizer.", "modulation.", "lens.")
BUFFERS = ("running_mean", "running_var", "num_batches_tracked", ".u")


def is_private(name: str) -> bool:
    return name.startswith(PRIVATE) or name.endswith(BUFFERS)


class SharesAll(PaDPaF):
    """Broken: no split at all."""

    def shares(self, model: Model) -> list[str]:
        return [name for name, value in model.state_dict().items() if value.is_floating_point()]


class SharesStatistics(PaDPaF):
    """Broken: buffers are uploaded with the parameters."""

    def shares(self, model: Model) -> list[str]:
        own = set(super().shares(model))
        return [name for name in model.state_dict() if name in own or name.endswith((".u", "running_mean"))]


class Forgets(PaDPaF):
    """Broken: a client starts every round with new private parts."""

    def receive(self, client: Client, broadcast: Broadcast, memory: State) -> dict[str, float]:
        return super().receive(client, broadcast, {})


class ServerOverwrites(PaDPaF):
    """Broken: the server's tensors replace private ones."""

    def keeps(self, model: Model) -> list[str]:
        return [name for name in super().keeps(model) if not name.startswith("style_")]


def two_rounds(config: Config, folder: Path) -> Iterator[tuple[ServerState, ServerState, Any, Any]]:
    """Of each client: the server before and after, its upload, its tensors before and after the update."""
    federation = federate(config)
    images = federation.train
    network = build_network(config, images.size, images.channels, len(images.classes))
    runner = ClientRunner(config, federation, network, MemoryStore(folder, 64))
    server = runner.first_server()
    aggregate = config.method.aggregate(server, 1, server_tools(config, runner.model))
    left = {}
    for client in range(2):
        outcome = runner.run(Task(1, client, config.method.broadcast(server, client, 1)))
        assert not outcome.failure, outcome.failure
        left[client] = (
            {name: value.clone() for name, value in runner.model.state_dict().items()},
            outcome.upload,
            int(outcome.remembers),  # the round of its memory, as an engine notes it
        )
        aggregate.add(outcome.upload)
    after = aggregate.finish()
    for client, (trained, upload, memory) in left.items():
        model = runner.receive(Task(2, client, config.method.broadcast(after, client, 2), memory))
        yield server, after, upload, (trained, dict(model.state_dict()))


def check(config: Config, folder: Path) -> None:
    seen = []
    for before, after, upload, (trained, received) in two_rounds(config, folder):
        private = [name for name in trained if is_private(name)]
        assert private
        assert not [name for name in upload.state if is_private(name)], "private tensors in an upload"
        assert not [name for name in after.model if is_private(name)], "private tensors at the server"
        assert not [name for name in after.memory if name.split("/")[-1].startswith(PRIVATE)]
        for name in private:
            assert torch.equal(trained[name], received[name]), f"{name} changed with the server's update"
        shared = [name for name in trained if not is_private(name)]
        assert set(upload.state) == set(shared)
        for name in shared:
            assert torch.equal(received[name], after.model[name])
        assert any(not torch.equal(before.model[name], after.model[name]) for name in shared)
        seen.append(trained)
    # And the clients' private tensors are their own.
    moved = [name for name, value in seen[0].items() if is_private(name) and value.is_floating_point()]
    assert any(not torch.equal(seen[0][name], seen[1][name]) for name in moved)


@pytest.mark.parametrize("kind", list(KINDS))
def test_private_tensors_are_neither_sent_nor_changed(kind: str, tmp_path: Path) -> None:
    check(load(KINDS[kind]), tmp_path)


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (SharesAll, "in an upload"),
        (SharesStatistics, "in an upload"),
        (Forgets, "changed with the server's update"),
        (ServerOverwrites, "changed with the server's update"),
    ],
)
def test_the_check_fails_for_broken_methods(
    kind: str, broken: type[PaDPaF], problem: str, tmp_path: Path
) -> None:
    if kind == "linear-gan" and broken is SharesStatistics:
        pytest.skip("it has no buffers")
    config = load(KINDS[kind]).model_copy(update={"method": broken(name="broken")})
    with pytest.raises(AssertionError, match=problem):
        check(config, tmp_path)


def test_the_label_maps_follow_their_option(tmp_path: Path) -> None:
    for where in ("shared", "private"):
        config = load(KINDS["conditional-gan"], {"objective.label_maps": where})
        for _, after, upload, _ in two_rounds(config, tmp_path / where):
            for state in (upload.state, after.model):
                found = any(name.startswith("label_modulation.") for name in state)
                assert found == (where == "shared")
