"""Many sites on one machine, each a process with its own key, images and memory, over Flower and TLS.

`fedssl client` starts an interpreter for every task, which takes seconds of a core. Here all sites are forked
from one process that has imported PyTorch. Each communicates with the server like `fedssl client`, by
Flower's own connection and with the site's key, and runs the same code (`fedssl.engines.flower.client`) in
its own folder. The only difference is that a site remains one process from task to task.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.supercore import heartbeat
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    pull_and_inflate_object_from_tree,
    push_object_contents_from_iterable,
)
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import fleet_http_connection

from fedssl.engines.flower.client import app

POLL = 1.0  # seconds between two requests for a task
HEARTBEAT = 10  # seconds; the server considers a site lost after two intervals


@dataclass(frozen=True)
class Light:
    """A site: the address of its server, its keys and certificates, its images and its memory."""

    name: str
    port: int
    certs: str
    data: str
    state: str
    log: str


class Zygote:
    """A process that forks sites. It is forked itself before this process has threads."""

    def __init__(self) -> None:
        heartbeat.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT
        fleet_http_connection.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT
        fleet_http_connection.flwr_exit = lost
        torch.set_num_threads(1)
        asked, self._ask = os.pipe()
        self._hear, told = os.pipe()
        self.process = os.fork()
        if self.process:
            return
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended sites leave no zombies
        os.setsid()
        with os.fdopen(asked) as questions:
            os.close(self._ask)  # so that it ends when the process that forked it does
            for line in questions:
                site = os.fork()
                if not site:
                    run_site(Light(**json.loads(line)))
                os.write(told, f"{site}\n".encode())
        os._exit(0)

    def start(self, site: Light) -> int:
        """Start a site; returns its process."""
        os.write(self._ask, (json.dumps(asdict(site)) + "\n").encode())
        answer = b""
        while not answer.endswith(b"\n"):
            answer += os.read(self._hear, 16)
        return int(answer)

    def close(self) -> None:
        """End all sites."""
        with suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)


def lost(_: int, reason: str = "", **__: Any) -> None:
    """Replaces Flower's exit, which would end the process: the site tries again."""
    raise ConnectionError(reason)


def run_site(site: Light) -> None:
    """The main function of a site's process."""
    output = os.open(site.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    while True:
        try:
            serve(site)
        except ConnectionError as error:
            print(time.strftime("%H:%M:%S"), " ".join(str(error).split())[:200])
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        time.sleep(POLL)


def serve(site: Light) -> None:
    """Connect, and work until the connection is lost."""
    folder = Path(site.certs)
    private: Any = load_ssh_private_key((folder / f"{site.name}.key").read_bytes(), None)
    certificate = (folder / "ca.crt").read_bytes()
    node: dict[str, Any] = {"data": site.data, "state": site.state, "name": site.name, "threads": 1}
    node |= {"device": "", "trust": False}
    with fleet_http_connection.http_request_response(
        f"localhost:{site.port}", False, certificate, (private, private.public_key()), 3, 20.0
    ) as (me, receive, send, _, _, pull, push, confirm):
        while True:
            found = receive()
            if found is None:
                time.sleep(POLL)
                continue
            message, tree = found
            run = message.metadata.run_id
            content = pull_and_inflate_object_from_tree(
                tree, partial(pull, run), partial(confirm, run), return_type=Message
            )
            content.metadata.__dict__["_message_id"] = tree.object_id
            TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, me
            context = Context(run_id=run, node_id=me, node_config=node, state=RecordDict(), run_config={})
            answer(app(content, context), send, partial(push, run))


def answer(reply: Message, send: Callable[..., Any], push: Callable[..., None]) -> None:
    """Send a reply like Flower: first the list of its parts, then the parts that the server lacks."""
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        tree, parts = get_object_tree(reply), get_all_nested_objects(reply)
        missing, session = send(remove_content_from_message(reply), tree, 0.1)
        contents = ((key, part.deflate()) for key, part in parts.items() if key in missing)
        push_object_contents_from_iterable(contents, partial(push, session))
