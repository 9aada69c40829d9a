"""A node's part of a run: it trains, stores the result, and identifies itself.

A site's process lives for one message: it reads the site's own images and the memory on its own disk.
A simulated node finds both in the server's folders.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedssl.allocator import keep_freed_memory
from fedssl.engines.flower import messages
from fedssl.engines.flower.journal import emit
from fedssl.openmp import sleep_when_busy

if TYPE_CHECKING:
    from fedssl.config import Config
    from fedssl.engines.runner import ClientRunner
    from fedssl.engines.tasks import Outcome, Task

app = ClientApp()
log = logging.getLogger("flwr")


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Answer with the node's identity: a site's name, or the number of a simulated client."""
    node = context.node_config
    known: dict[str, Any] = {key: node[key] for key in ("name", "partition-id") if key in node}
    return Message(messages.records(known), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Receive, train, upload."""
    text = messages.read_text(message.content, longest=1 << 24)
    tensors = messages.read_tensors(message.content)
    outcome = work(text, tensors, context.node_config)
    reply = messages.reply(outcome, text["config"]["wire"]["dtype"])
    if "data" in context.node_config:
        report_round(text, outcome, sum(map(len, tensors)), sum(map(len, messages.read_tensors(reply))))
    return Message(reply, reply_to=message)


def report_round(text: Mapping[str, Any], outcome: Outcome, received: int, sent: int) -> None:
    """One line of the site's log."""
    number = int(text["round"])
    if text.get("measure"):
        emit("note", text=_describe_measurement(outcome))
        return
    if outcome.failure or outcome.upload is None:
        emit("failed", "warning", who=f"round {number}: this site was", reason=outcome.failure)
        return
    privacy, upload = text["config"].get("privacy", {}), outcome.upload
    withheld = privacy.get("secure") or privacy.get("mode") == "client"
    values: dict[str, Any] = {} if withheld else {"images": upload.num_samples}
    if not withheld and privacy.get("mode") != "example":
        values["loss"] = upload.loss
    emit(
        "round",
        round=number,
        rounds=text["config"].get("rounds", number),
        seconds=outcome.seconds,
        **values,
        received=received,
        sent=sent,
    )


def _describe_measurement(outcome: Outcome) -> str:
    """Describe a site's measurements."""
    if outcome.upload is None:
        return outcome.failure
    found = {
        name: value for name, value in outcome.upload.values.items() if name.endswith((".accuracy", "knn"))
    }
    if not found:
        return "measured the statistics of normalization layers on own images"
    shown = ", ".join(f"{name.removesuffix('.accuracy')} {value:.1%}" for name, value in found.items())
    return f"probes on {outcome.upload.values['tested']:.0f} own images: {shown}"


@app.query("secure")
def exchange(message: Message, context: Context) -> Message:
    """Answer one exchange of secure aggregation, from the files that training left on this node's disk."""
    from fedssl.privacy.secure.client import Refused, SecureClient
    from fedssl.privacy.secure.server import Answer

    text, node = messages.read_text(message.content, longest=1 << 24), context.node_config
    client, round = int(text["client"]), int(text["round"])
    memories = run_folder(text, node) / "memories" if "data" in node else simulated_memories(text["setup"])
    try:
        secure = SecureClient(memories / str(client) / "secure", client, round)
        answer = Answer(client, secure.answer(text["stage"], text["data"].encode()))
    except Refused as refused:
        log.warning("round %s, secure aggregation: %s", round, refused)
        answer = Answer(client, failure=str(refused))
    return Message(messages.secure_reply(answer), reply_to=message)


@app.evaluate()
def keep(message: Message, context: Context) -> Message:
    """Write the result of the run, the site's encoder, to its disk."""
    from fedssl.engines.tasks import Outcome
    from fedssl.errors import FedsslError

    text = messages.read_text(message.content, longest=1 << 24)
    try:
        folder = write_encoder(text, messages.read_tensors(message.content), context.node_config)
        emit("result", text=f"the run is complete; wrote {folder}/encoder.safetensors")
        outcome = Outcome(text["client"])
    except FedsslError as error:
        emit("note", "warning", text=f"the encoder was not written: {error}")
        outcome = Outcome(text["client"], failure=str(error))
    return Message(messages.reply(outcome, "float32"), reply_to=message)


def work(text: dict[str, Any], tensors: list[bytes], node: Mapping[str, Any]) -> Outcome:
    """Run one client's part of one round; errors are failures of the client."""
    from fedssl.engines.tasks import Outcome
    from fedssl.engines.wire import WireError
    from fedssl.errors import FedsslError

    try:
        check_versions(text.get("versions", {}))
        runner, task = prepare(text, tensors, node)
        unreadable = report_images(runner, run_folder(text, node)) if "data" in node else 0
        with keep_freed_memory(), sleep_when_busy():
            outcome = runner.run(task)
    except (FedsslError, WireError) as error:
        return Outcome(text["client"], failure=str(error))
    if outcome.upload is not None and task.memory_round != text["memory_round"]:
        outcome.upload.values["memory_lost"] = 1
    if outcome.upload is not None and unreadable:
        outcome.upload.values["unreadable"] = unreadable
    return outcome


def check_versions(theirs: Mapping[str, str]) -> None:
    """Raise a RunError if the server has other versions than this site."""
    from fedssl.engines.flower.versions import versions
    from fedssl.errors import RunError

    for name, mine in versions().items():
        if theirs.get(name, mine) != mine:
            raise RunError(
                f"this site has {name} {mine}, but the server has {theirs[name]}: install the same version"
            )


def report_images(runner: ClientRunner, folder: Path) -> int:
    """Log the names of unreadable images once per run; returns their number."""
    from fedssl.data.cache import count_unreadable
    from fedssl.storage import write_text

    warnings, known = runner.federation.train.warnings, folder / "warnings.txt"
    text = "\n".join(warnings)
    if text and (not known.exists() or known.read_text(encoding="utf-8") != text):
        for warning in warnings:
            emit("images", "warning", text=warning)
        write_text(known, text)
    return count_unreadable(warnings)


def prepare(text: dict[str, Any], tensors: list[bytes], node: Mapping[str, Any]) -> tuple[ClientRunner, Task]:
    from fedssl.engines.tasks import Task
    from fedssl.engines.wire import MEGABYTE, unpack
    from fedssl.state import Broadcast

    client, memory_round = int(text["client"]), int(text["memory_round"])
    if "data" in node:
        runner = site_runner(text, node)
        runner.memories.forget(client, before=int(text["keep_from"]))
        if not runner.memories.has(client, memory_round):
            memory_round = 0  # the disk was lost: start like a new client
        threads = 0  # its own
    else:
        runner, threads = simulated_runner(text["setup"]), int(text["threads"])
    models = [unpack(data, runner.config.wire.max_mb * MEGABYTE) for data in tensors]
    broadcast = Broadcast.from_states(models, text["values"])
    measure = text.get("measure", "")
    return runner, Task(int(text["round"]), client, broadcast, memory_round, threads=threads, measure=measure)


@lru_cache(maxsize=1)
def simulated_runner(folder: str) -> ClientRunner:
    """A runner for all clients of the simulation, with all images mapped into memory."""
    from fedssl.engines.worker import set_up

    return set_up(Path(folder), device="")


def simulated_memories(folder: str) -> Path:
    """The folder of simulated clients' memories."""
    return Path(json.loads((Path(folder) / "setup.json").read_text())["memories"])


def site_runner(text: dict[str, Any], node: Mapping[str, Any]) -> ClientRunner:
    """A runner for the client of this site, with its images."""
    import numpy as np
    import torch

    from fedssl.config import from_values
    from fedssl.data.federation import Federation
    from fedssl.data.sets import load_whole
    from fedssl.engines.live import LiveRun
    from fedssl.engines.memory import MemoryStore
    from fedssl.trust import names_from, trusting

    with names_from("the server's config"), trusting(bool(node.get("trust"))):
        config = own_config(from_values(text["config"]), node)
    torch.set_num_threads(config.engine.threads)
    images = load_whole(config.data)
    nothing = np.empty(0, dtype=np.int64)
    parts = [nothing for _ in range(int(text["clients"]))]
    parts[int(text["client"])] = np.arange(len(images))
    memories = MemoryStore(run_folder(text, node) / "memories", config.engine.cache_mb)
    # Sites share no classes: the network is the one that the server builds without labels.
    return LiveRun(config, Federation(images, None, parts, nothing), memories, classes=0).runner


def own_config(config: Config, node: Mapping[str, Any]) -> Config:
    """The run's config with the site's images, threads and device."""
    data = config.data.model_copy(
        update={
            "name": "npz" if str(node["data"]).endswith(".npz") else "folder",
            "root": node["data"],
            "memory_mb": 1,  # from the second round on decoded images are mapped, not decoded again
        }
    )
    threads = node.get("threads") or config.engine.threads or os.cpu_count() or 1
    engine = config.engine.model_copy(update={"threads": threads})
    device = node.get("device") or config.device
    return config.model_copy(update={"data": data, "engine": engine, "device": device})


def run_folder(text: dict[str, Any], node: Mapping[str, Any]) -> Path:
    """The site's folder of a run."""
    run = str(text["run"])
    if not re.fullmatch(r"[0-9a-f]{32}", run):
        raise ValueError(f"{run!r} is not the name of a run")
    return Path(str(node["state"])) / "runs" / run


def write_encoder(text: dict[str, Any], tensors: list[bytes], node: Mapping[str, Any]) -> Path:
    """Write the encoder that this site uses to its state folder; returns the folder."""
    from fedssl.engines import export
    from fedssl.rundir import RunDir

    runner, task = prepare(text, tensors, node)
    config, images = runner.config, runner.federation.train
    module = config.method.personal_encoder(runner.receive(task))
    encoder = config.objective.encoder(config, images.size, images.channels)
    folder = run_folder(text, node)
    export.write_encoder(RunDir(folder), config, encoder, module, images, f"client {task.client}")
    return folder
