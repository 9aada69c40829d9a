"""The round loop: sample, broadcast, collect, aggregate. The same for every engine with a server."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from fedssl.aggregation.late_average import average_late
from fedssl.config import Config
from fedssl.data.federation import Federation
from fedssl.engines import wire
from fedssl.engines.anchor import Anchor
from fedssl.engines.check import problem_with
from fedssl.engines.intake import Intake
from fedssl.engines.kinds import mean_by_kind, norms_by_kind
from fedssl.engines.memory import MemoryStore
from fedssl.engines.options import ParticipationConfig
from fedssl.engines.relay import Relay, find_routes, stages
from fedssl.engines.round_report import RoundReport
from fedssl.engines.schedule import Slot, schedule
from fedssl.engines.tasks import Outcome, Question, Task
from fedssl.engines.tools import server_tools
from fedssl.engines.traffic import WireTraffic
from fedssl.errors import RunError
from fedssl.methods.method import Aggregate
from fedssl.models.model import Model
from fedssl.privacy.canary import Canaries
from fedssl.privacy.guard import Guard
from fedssl.privacy.secure.server import Answer
from fedssl.rng import numpy_rng
from fedssl.state import ServerState, Upload, digest


class Clients(Protocol):
    """Where clients run: in this process, in workers, or at sites."""

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """Run tasks, and yield their outcomes in the order of the tasks as soon as possible.

        With spare tasks, outcomes may be in the order of arrival; the caller stops when it has enough.
        """

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer]:
        """Ask clients that have trained in an exchange of secure aggregation; yields answers in any order."""

    def close(self) -> None:
        """Release processes, connections and files."""


class RoundLoop:
    """Runs rounds from a server state; files, probes and display are up to the caller's callback."""

    def __init__(
        self,
        config: Config,
        model: Model,
        federation: Federation,
        engine: Clients,
        memories: MemoryStore,
        guard: Guard,
        anchor: Anchor | None = None,
    ) -> None:
        self.guard, self.anchor = guard, anchor
        self.config, self.engine, self.memories, self.federation = config, engine, memories, federation
        self.canaries = Canaries(config.seed, federation.clients, config.privacy.canaries)
        self.tools = server_tools(config, model)
        self.kinds = model.kinds()
        self.variances = model.variances()
        self.memory_rounds: dict[int, int] = {}

    def run(
        self, server: ServerState, start: int, after_round: Callable[[RoundReport, ServerState], bool]
    ) -> ServerState:
        """Run the rounds after `start`, until the last one or until `after_round` returns True."""
        for number in range(start + 1, self.config.rounds + 1):
            server, report = self.round(server, number)
            if after_round(report, server):
                break
        return server

    def round(self, server: ServerState, number: int) -> tuple[ServerState, RoundReport]:
        began = time.monotonic()
        report = RoundReport(number, hides_loss=self.guard.hides_loss, withheld=self.guard.withholds)
        sent, tasks, good = WireTraffic(self.config.wire.dtype), list[Task](), 0
        selected, spares = self.select(number)
        report.absent = self.absent()
        routes = find_routes(self.config, number, selected, spares, self.tools)
        aggregate, relay = self.aggregate(server, number, report), Relay(server, routes)
        for stage in stages(routes):
            asked, intake = self._tasks(number, stage, spares, relay, sent), self.intake(number, stage)
            tasks += asked
            outcomes = self.engine.run(asked)
            for outcome in outcomes:
                sent.count(outcome)
                report.outcomes.append(outcome)
                usable, models = self._check(outcome, number, relay), relay.seen_by(outcome.client).states
                for ready in intake.receive(outcome, models) if usable else [outcome]:
                    self._fold(ready, number, relay, aggregate)
                good += outcome.upload is not None
                if good == len(selected):
                    break
            self._discard_unused(outcomes, asked, report)
            for ready in intake.finish():
                self._fold(ready, number, relay, aggregate)
        folded = sum(outcome.upload is not None for outcome in report.outcomes)
        needed = self.guard.fewest(len(selected), self.config.participation.min_clients)
        if folded < needed:
            raise RunError(_too_few(number, folded, needed, report))
        self._collect(tasks, report, sent)
        if self.config.engine.has_server:
            report.values |= {"bytes_down": sent.down, "bytes_up": sent.up}
        server, numbers, report.stop = self.guard.finish(aggregate.finish())
        server = average_late(server, number, self.config.rounds, self.config.server.average)
        report.summed_views = int(numbers.pop("views", 0))
        report.values |= numbers
        report.values |= norms_by_kind(server.states, self.kinds)
        report.seconds = time.monotonic() - began
        return server, report

    def _tasks(
        self, number: int, stage: Sequence[int], spares: Sequence[int], relay: Relay, sent: WireTraffic
    ) -> list[Task]:
        """Create the tasks of clients that train in parallel, followed by those of spare clients."""
        method, plan = self.config.method, plan_round(self.config, self.federation, number, stage, spares)
        broadcasts = (method.broadcast(relay.seen_by(client), client, number) for client in (*stage, *spares))
        return [
            Task(
                number,
                client,
                sent.round(self.guard.send(broadcast, relay.server)),
                self.memory_rounds.get(client, 0),
                client in spares,
                plan[client].threads,
                plan[client].turn,
            )
            for client, broadcast in zip((*stage, *spares), broadcasts, strict=True)
        ]

    def select(self, number: int) -> tuple[list[int], list[int]]:
        """Return the clients of a round, and its spare clients."""
        sampled, spares = self.guard.sample(number), list[int]()
        if sampled is None:
            participation, seed = self.config.participation, self.config.seed
            sampled, spares = draw_clients(participation, self.canaries.total, seed, number)
        return self.canaries.without_absent(sampled), self.canaries.without_absent(spares)

    def absent(self) -> dict[int, str]:
        """Clients that could not be asked in this round, and why: sites that are not there."""
        return {}

    def aggregate(self, server: ServerState, number: int, report: RoundReport) -> Aggregate:
        """Start the aggregate of a round; its numbers are added to the report."""
        tools = self.tools
        if self.anchor is not None:
            tools = replace(tools, rule=self.anchor.rule(server, number))
        return self.config.method.aggregate(server, number, self.guard.start(server, number, tools))

    def intake(self, number: int, selected: Sequence[int]) -> Intake:
        """Create the intake of a round. The server knows client sizes if it assigned the images."""
        return Intake(
            self.config.participation,
            sizes(self.federation, number, selected),
            self.tools.statistics,
            sees_models=not (self.guard.withholds or getattr(self.tools.rule, "client_side", False)),
        )

    def _collect(self, tasks: Sequence[Task], report: RoundReport, sent: WireTraffic) -> None:
        """Collect masked uploads (secure aggregation); clients that drop out have failed."""

        def ask(stage: str, questions: Mapping[int, bytes]) -> Iterator[Answer]:
            sent.down += sum(map(len, questions.values()))
            for answer in self.engine.ask(
                [Question(report.round, client, stage, data) for client, data in questions.items()]
            ):
                sent.up += len(answer.data)
                yield answer

        lost = self.guard.collect(ask)
        for outcome in report.outcomes:
            if outcome.client in lost and outcome.upload is not None:
                outcome.failure, outcome.upload = lost[outcome.client], None
                self.memories.discard(outcome.client, report.round)
                self.memory_rounds.pop(outcome.client, None)
        earlier = {task.client: task.memory_round for task in tasks if task.client in lost}
        self.memory_rounds |= {client: round for client, round in earlier.items() if round}

    def _check(self, outcome: Outcome, number: int, relay: Relay) -> bool:
        """Whether there is an upload that is valid by itself."""
        upload = outcome.upload
        if upload is None:
            return False
        outcome.digest = digest(upload.state) if self.config.log.audit else ""
        model = relay.seen_by(outcome.client).states[0]
        other = self.guard.expected(model)
        if other is None:
            most = self.config.participation.max_images
            outcome.failure = problem_with(upload, model, most, self.variances)
        else:
            outcome.failure = problem_with(upload, other)
        if outcome.failure:
            self._refuse(outcome, number)
        return not outcome.failure

    def _fold(self, outcome: Outcome, number: int, relay: Relay, aggregate: Aggregate) -> None:
        """Aggregate an upload or pass it to the next client, unless refused; then release its tensors."""
        arrived = relay.finish(outcome.client, None if outcome.failure else outcome.upload)
        if arrived is not None:
            problem = self._try_to_add(arrived, aggregate)
            outcome.failure = outcome.failure or problem
        if outcome.upload is None:
            return
        if outcome.failure:
            self._refuse(outcome, number)
        else:
            outcome.upload.state = {}
            if outcome.remembers:
                self.memory_rounds[outcome.client] = number

    def _refuse(self, outcome: Outcome, number: int) -> None:
        """Mark a client as failed, and delete its memory of the round."""
        outcome.upload = None
        if outcome.remembers:
            self.memories.discard(outcome.client, number)

    def _try_to_add(self, upload: Upload, aggregate: Aggregate) -> str:
        """Why the upload could not be aggregated; empty if it was."""
        try:
            upload.state = wire.round_to_dtype(upload.state, self.config.wire.dtype)
            measured = aggregate.add(upload)
            self.guard.record(upload)
            upload.values |= measured | mean_by_kind(measured.get("angles", {}), self.kinds, "angle")
        except (RunError, ValueError) as error:  # no such cluster, a value beyond 16 bits, no mass
            return str(error)
        return ""

    def _discard_unused(
        self, outcomes: Iterator[Outcome], tasks: Sequence[Task], report: RoundReport
    ) -> None:
        """Cancel spare tasks that were not needed, and discard their memories."""
        if isinstance(outcomes, Generator):
            outcomes.close()
        heard = {outcome.client for outcome in report.outcomes}
        report.unused = sorted(task.client for task in tasks if task.client not in heard)
        for client in report.unused:
            self.memories.discard(client, report.round)


def sample_clients(participation: ParticipationConfig, clients: int, seed: int, round: int) -> list[int]:
    """Draw the sorted ids of the clients of a round."""
    return draw_clients(participation, clients, seed, round)[0]


def draw_clients(
    participation: ParticipationConfig, clients: int, seed: int, round: int
) -> tuple[list[int], list[int]]:
    """Draw the ids of the clients of a round, and of spare clients, each sorted."""
    count, spares = round_size(participation, clients)
    drawn = numpy_rng(seed, round, "participation").choice(clients, size=count + spares, replace=False)
    ids = [int(client) for client in drawn]
    return sorted(ids[:count]), sorted(ids[count:])


def round_size(participation: ParticipationConfig, clients: int) -> tuple[int, int]:
    """The numbers of clients and of spare clients in a round."""
    count = participation.size(clients)
    return count, min(math.ceil(participation.overshoot * count), clients - count)


def plan_round(
    config: Config, federation: Federation, round: int, selected: Sequence[int], spares: Sequence[int]
) -> dict[int, Slot]:
    """Plan threads and turns of the clients of a round; spare clients have no share and start last."""
    plan = schedule(sizes(federation, round, selected), config.engine.threads, config.engine.wave or 1)
    last = Slot(config.engine.threads, len(selected))
    return dict(zip(selected, plan, strict=True)) | dict.fromkeys(spares, last)


def sizes(federation: Federation, round: int, clients: Sequence[int]) -> list[int]:
    """The number of images of each client. Canaries (`fedssl.privacy.canary`) follow the clients."""
    return [federation.num_images(client % federation.clients, round) for client in clients]


def _too_few(number: int, folded: int, needed: int, report: RoundReport) -> str:
    reasons = [
        f"client {outcome.client}: {outcome.failure}" for outcome in report.outcomes if outcome.failure
    ]
    shown = "; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more" if len(reasons) > 3 else "")
    return f"round {number}: {folded} uploads, but participation.min_clients is {needed} ({shown})"
