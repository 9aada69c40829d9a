"""Clients on a Flower grid, behind the interface that the round loop uses."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Array, Message

from fedssl.config import Config
from fedssl.data.federation import Federation
from fedssl.engines import wire
from fedssl.engines.audit_log import AuditLog
from fedssl.engines.flower import messages
from fedssl.engines.flower.engine import Flower
from fedssl.engines.flower.nodes import Grid, Node, Nodes, pull_answers
from fedssl.engines.flower.versions import versions
from fedssl.engines.runner import ClientRunner
from fedssl.engines.tasks import Outcome, Question, Task
from fedssl.engines.workers import write_setup
from fedssl.errors import ConfigError, RunError
from fedssl.locks import Scratch
from fedssl.privacy.secure.server import Answer
from fedssl.state import State
from fedssl.storage import write_text

# Seconds for an exchange of secure aggregation, or to deliver the result, without participation.timeout.
EXCHANGE = 300.0
CHECK_NODES = 10.0  # seconds between checks for nodes that have restarted while they train
SHARES = 1024  # bytes of one client's encrypted shares for another, at most


@dataclass(frozen=True)
class Pending:
    """A task or question that was sent and not answered yet."""

    position: int
    client: int
    node: Node
    longest: int  # largest accepted size of the answer in bytes; 0: no upload is expected
    becomes: type[Outcome] | type[Answer] = Outcome


@dataclass(frozen=True)
class Letter:
    """A message to one node, and the expected answer."""

    text: dict[str, Any]
    arrays: list[Array]
    asked: Pending


Found = dict[int, Any]  # outcomes or answers, by the position of the task or question


class GridClients:
    """Sends tasks to nodes and collects their answers."""

    def __init__(
        self,
        grid: Grid,
        config: Config,
        runner: ClientRunner,
        federation: Federation,
        tell: Callable[[str], None],
    ) -> None:
        self.grid, self.config, self.runner, self.clients = grid, config, runner, federation.clients
        assert isinstance(config.engine, Flower)
        self.engine = config.engine
        self.at_sites = bool(self.engine.sites)
        audit = AuditLog(runner.memories.folder.parents[1]) if self.at_sites and config.log.audit else None
        self.nodes = Nodes(grid, self.engine.sites, federation.clients, tell, audit)
        self.connected: dict[int, Node] = {}
        self.busy: set[int] = set()  # connected, but not done with an earlier round
        self.poll = 0.5 if self.at_sites else 0.05
        self._unanswered: dict[str, Node] = {}  # by message: asked in an earlier round
        self._config = config.to_dict()
        self.longest = self._longest_upload()
        self._about: dict[str, Any] = {
            "clients": federation.clients,
            "config": self._config,
            "versions": versions(),
        }
        self._scratch: Scratch | None = None
        if self.at_sites:
            self._about["run"] = run_name(runner.memories.folder)
        else:
            self._scratch = Scratch()
            write_setup(self._scratch.folder, config, federation, runner.memories.folder)
            self._about["setup"] = str(self._scratch.folder)

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.close()

    # --- connected nodes ----------------------------------------------------------------------

    def gather(self, first: bool = False, enough: int | None = None) -> list[int]:
        """Wait until enough clients are connected.

        Args:
            first: wait for all clients, but no longer than `engine.patience`.
            enough: do without the others after `engine.patience`; None: never with fewer than a round needs.

        Returns:
            Their ids; in a simulation, of all clients.
        """
        needed = self.config.participation.min_clients if self.at_sites else self.clients
        hoped = self.clients if first else needed
        enough = needed if enough is None else enough
        patience = self.engine.patience if self.at_sites else 0.0
        while True:
            connected = self.nodes.wait(min(enough, self.clients), hoped, patience)
            self._read_late_answers(connected)
            busy = {node.id for node in self._unanswered.values()}
            self.connected = {client: node for client, node in connected.items() if node.id not in busy}
            self.busy = connected.keys() - self.connected.keys()
            if len(self.connected) >= min(enough, self.clients):
                return list(self.connected)
            time.sleep(self.poll)

    def _read_late_answers(self, connected: dict[int, Node]) -> None:
        """A node that did not answer is used again once it has answered or restarted."""
        if not self._unanswered:
            return
        for id, _, _ in pull_answers(self.grid, list(self._unanswered)):
            self._unanswered.pop(id)
        now = set(connected.values())
        there = {node.id for node in now}
        self._unanswered = {
            id: node for id, node in self._unanswered.items() if node in now or node.id not in there
        }

    # --- a round ------------------------------------------------------------------------------

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        waiting, gone = self._send(tasks, messages.TRAIN)
        answers = self._answers(waiting, gone, self.config.participation.timeout)
        try:
            if any(task.spare for task in tasks):
                yield from self._as_they_arrive(tasks, waiting, answers)
            else:
                yield from self._in_order(tasks, answers)
        finally:
            self._unanswered |= {id: asked.node for id, asked in waiting.items()}

    def _in_order(self, tasks: Sequence[Task], answers: Iterator[Found]) -> Iterator[Outcome]:
        done: Found = {}
        for position in range(len(tasks)):
            while position not in done:
                done |= next(answers)
            yield done.pop(position)

    def _as_they_arrive(
        self, tasks: Sequence[Task], waiting: dict[str, Pending], answers: Iterator[Found]
    ) -> Iterator[Outcome]:
        """Wait for enough answers and yield them in the order of the tasks; then yield each as it arrives."""
        enough = sum(not task.spare for task in tasks)
        done: Found = {}
        for answered in answers:
            done |= answered
            if sum(outcome.upload is not None for outcome in done.values()) >= enough or not waiting:
                enough = 0
                for position in sorted(done):
                    yield done.pop(position)

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer]:
        """Ask the clients that have trained; those that left or timed out have failed."""
        limit = self.config.participation.timeout or EXCHANGE
        waiting, gone = self._push(
            [
                Letter(
                    self._about
                    | {"round": each.round, "client": each.client, "stage": each.stage}
                    | {"data": each.data.decode()},
                    [],
                    Pending(place, each.client, self.connected[each.client], self._longest_answer, Answer),
                )
                for place, each in enumerate(questions)
            ],
            messages.SECURE,
            limit,
        )
        for found in self._answers(waiting, gone, limit):
            yield from found.values()

    def _answers(self, waiting: dict[str, Pending], gone: Found, limit: float) -> Iterator[Found]:
        """Poll for answers until all have arrived or the timeout has passed."""
        if gone:
            yield gone
        began = looked = time.monotonic()
        while waiting:
            found: Found = {}
            for id, message, problem in pull_answers(self.grid, list(waiting)):
                asked = waiting.pop(id)
                found[asked.position] = read_answer(message, problem, asked)
            now = time.monotonic()
            if self.at_sites and now - looked > CHECK_NODES:
                looked = now
                found |= self._find_restarted(waiting)
            if limit and now - began > limit:
                found |= self._too_late(waiting, limit)
            if found:
                yield found
            elif waiting:
                time.sleep(self.poll)

    def _find_restarted(self, waiting: dict[str, Pending]) -> Found:
        """Find nodes that have restarted and lost their task."""
        there = {node.id: node for node in self.nodes.connected().values()}
        gone = {
            id: asked for id, asked in waiting.items() if there.get(asked.node.id, asked.node) != asked.node
        }
        return self._give_up(waiting, gone, "its node restarted during the round")

    def _too_late(self, waiting: dict[str, Pending], limit: float) -> Found:
        late = dict(waiting)
        self._unanswered |= {id: asked.node for id, asked in late.items()}
        return self._give_up(waiting, late, f"timed out: no answer after participation.timeout, {limit:g} s")

    def _give_up(self, waiting: dict[str, Pending], given_up: dict[str, Pending], reason: str) -> Found:
        for id in given_up:
            del waiting[id]
        return {asked.position: asked.becomes(asked.client, failure=reason) for asked in given_up.values()}

    def _send(self, tasks: Sequence[Task], kind: str) -> tuple[dict[str, Pending], Found]:
        """Send tasks. A model that is sent to several clients is packed once.

        Returns:
            The tasks that were sent, and failures of those whose node has left.
        """
        arrays: dict[int, tuple[State, Array]] = {}  # by identity of the model, which is kept alive
        letters: list[Letter] = []
        absent: Found = {}
        for position, task in enumerate(tasks):
            for model in task.broadcast.states:
                if id(model) not in arrays:
                    arrays[id(model)] = (model, messages.array(model, self.config.wire.dtype))
            longest = self.longest if kind == messages.TRAIN else 0
            if task.client not in self.connected:
                absent[position] = Outcome(task.client, failure="its node is not connected")
                continue
            asked = Pending(position, task.client, self.connected[task.client], longest)
            packed = [arrays[id(model)][1] for model in task.broadcast.states]
            letters.append(Letter(self._text(task), packed, asked))
        waiting, gone = self._push(letters, kind, self.config.participation.timeout)
        return waiting, absent | gone

    def _push(self, letters: Sequence[Letter], kind: str, limit: float) -> tuple[dict[str, Pending], Found]:
        """Send messages; returns the pending ones, and failures of nodes that have just left."""
        sent = [
            Message(
                messages.records(letter.text, letter.arrays),
                letter.asked.node.id,
                kind,
                ttl=limit or None,
                group_id=str(letter.text["round"]),
            )
            for letter in letters
        ]
        ids = list(self.grid.push_messages(sent)) if sent else []
        if len(ids) != len(sent):
            raise RunError(f"Flower's SuperLink refused {len(sent)} messages: too large")
        pairs = list(zip(ids, (letter.asked for letter in letters), strict=True))
        gone = {
            asked.position: asked.becomes(asked.client, failure="its node has left")
            for id, asked in pairs
            if not id
        }
        return {id: asked for id, asked in pairs if id}, gone

    def _text(self, task: Task) -> dict[str, Any]:
        return self._about | {
            "round": task.round,
            "client": task.client,
            "memory_round": task.memory_round,
            "threads": task.threads,
            "measure": task.measure,
            "keep_from": self.runner.memories.oldest(task.client),
            "values": task.broadcast.values,
        }

    @property
    def _longest_answer(self) -> int:
        """Bytes of a masked upload, or of shares for every client, at most."""
        words = sum(self.runner.initial[name].numel() + 1 for name in self.runner.boundary.travels)
        return 8 * words + SHARES * self.clients + wire.HEADER

    def _longest_upload(self) -> int:
        """Bytes of an upload with the right tensors."""
        expected = {name: self.runner.initial[name] for name in self.runner.boundary.travels}
        if self.at_sites and not expected:
            raise ConfigError(f"method.name={self.config.method.name} shares nothing, so it needs no server")
        longest = wire.max_message_bytes(expected, self.config.wire.dtype)
        if longest > self.config.wire.max_mb * wire.MEGABYTE:
            raise ConfigError(
                f"an upload takes {longest / wire.MEGABYTE:,.0f} MB, more than "
                f"wire.max_mb={self.config.wire.max_mb}"
            )
        return longest

    # --- after the last round -----------------------------------------------------------------

    def deliver(self, tasks: Sequence[Task]) -> list[Outcome]:
        """Send the result to the sites; sites that do not answer in time are skipped."""
        limit = self.config.participation.timeout or EXCHANGE
        answers = self._answers(*self._send(tasks, messages.KEEP), limit)
        return [outcome for answered in answers for outcome in answered.values()]


def read_answer(message: Message | None, problem: str, asked: Pending) -> Outcome | Answer:
    """The outcome of a task, or the answer to a question."""
    if message is None:
        return asked.becomes(asked.client, failure=f"cannot be read: {problem}")
    if message.has_error():
        return asked.becomes(asked.client, failure=messages.problem(message.error))
    read = messages.read_outcome if asked.becomes is Outcome else messages.read_secure_answer
    return read(message.content, asked.client, asked.longest)


def run_name(folder: Path) -> str:
    """The unique name under which sites store the run's memories."""
    file = folder.parent / "run-name"
    if not file.exists():
        write_text(file, uuid.uuid4().hex)
    return file.read_text(encoding="utf-8")
