"""A Flower grid without Flower's processes: nodes answer when they are asked."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity
from PIL import Image

from fedssl.config import Config, load
from fedssl.data.federation import federate
from fedssl.engines.flower.client import app
from fedssl.engines.flower.engine import Flower
from fedssl.engines.flower.launch import with_sites
from fedssl.experiment import Experiment
from fedssl.listener import Listener
from fedssl.rundir import RunDir


class Notes(Listener):
    """Records notes."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


class FakeNode:
    """A node whose answers a test may change."""

    def __init__(self, id: int, config: dict[str, Any], name: str = "") -> None:
        self.info = NodeInfo(node_id=id, name=name, last_activated_at="1")
        self.context = Context(run_id=1, node_id=id, node_config=config, state=RecordDict(), run_config={})
        self.online = True
        self.silent = False

    def answer(self, message: Message) -> Message:
        return app(message, self.context)

    def restart(self) -> None:
        self.info.last_activated_at += "1"


class FakeGrid:
    """Records every message, in the form in which Flower's grid would send it."""

    def __init__(self, nodes: list[FakeNode]) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # as in a process of Flower's
        self.nodes = {node.info.node_id: node for node in nodes}
        self.asked: dict[str, Message] = {}
        self.down: list[Message] = []
        self.up: list[Message] = []
        self._ids = itertools.count(1)

    def get_nodes(self) -> list[NodeInfo]:
        return [node.info for node in self.nodes.values() if node.online]

    def push_messages(self, messages: list[Message]) -> list[str]:
        ids = []
        for message in messages:
            id = str(next(self._ids))
            message.metadata.__dict__["_message_id"] = id
            self.asked[id] = message
            self.down.append(message)
            ids.append(id)
        return ids

    def pull_messages(self, message_ids: list[str]) -> list[Message]:
        found = []
        for id in list(message_ids):
            message = self.asked[id]
            node = self.nodes[message.metadata.dst_node_id]
            if node.silent:
                continue
            if not node.online:
                reply = Message(Error(3, "the node is not available"), reply_to=message)
            else:
                reply = node.answer(message)
                self.up.append(reply)
            found.append(reply)
        return found


def site_folders(config: Config, folder: Path) -> list[Path]:
    """The images of every client of a federation as PNG files, in the order in which it has them."""
    federation = federate(config)
    places = []
    for client, part in enumerate(federation.parts):
        place = folder / f"site-{client}"
        place.mkdir(parents=True)
        for number, index in enumerate(part):
            pixels = federation.train.x[int(index)].numpy()[..., 0]
            Image.fromarray(pixels).save(place / f"{number:04d}.png")
        places.append(place)
    return places


def at_sites(values: dict[str, Any], sites: list[str], **overrides: Any) -> Config:
    """The config of a server whose sites have the images of the local federation."""
    shape = {"data.name": "none", "data.limit": 0, "data.size": 8, "data.channels": 1, "views.flip": 0.0}
    engine = {"engine.name": "flower", "engine.patience": 5.0, "checkpoint.every": 1}
    return with_sites(load(values, {**shape, **engine, **overrides}), sites)


def run_with(grid: FakeGrid, config: Config, out: Path) -> Notes:
    """A run (or what is left of one) with the grid's nodes as clients."""
    directory = RunDir(out) if (out / "config.toml").exists() else RunDir.create(out, config)
    listener = Notes()
    assert isinstance(config.engine, Flower)
    config.engine.attach(grid, listener.note)
    Experiment(directory, config, listener).execute()
    return listener
