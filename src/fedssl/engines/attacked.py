"""Clients of which some attack (`fedssl.attacks`): their uploads are replaced before the server sees them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fedssl.attacks.attack import Knowledge, order
from fedssl.engines.tasks import Outcome, Question, Task
from fedssl.errors import ConfigError
from fedssl.privacy.secure.server import Answer
from fedssl.state import State, Upload, distance
from fedssl.threads import with_threads
from fedssl.vectors import flat, square

if TYPE_CHECKING:
    from fedssl.config import Config
    from fedssl.engines.loop import Clients
    from fedssl.engines.runner import ClientRunner

UNLIMITED = 1e6  # what attackers make of a limit that is off: global norms, median numbers of images
BELOW = 0.99  # of a limit: rounding must not carry an upload over it


def check_attack(config: Config) -> None:
    """Raise a ConfigError for settings in which attackers cannot be simulated."""
    if config.attack.name == "none":
        return
    method = config.method
    one_model = not (method.pools_data or method.relays or method.evaluates == "cluster")
    sums = getattr(config.aggregation, "client_side", False)
    for possible, why in (
        (config.engine.name == "local", f"engine.name={config.engine.name} has no simulated clients"),
        (not config.privacy.on, "the section privacy hides individual uploads, which attacks need"),
        (one_model, f"method.name={method.name} has no uploads of clients with one global model"),
        (not sums, "with aggregation.client_side=true uploads are not models"),
    ):
        if not possible:
            raise ConfigError(f"attack.name={config.attack.name}: {why}")


def with_attackers(clients: Clients, runner: ClientRunner) -> Clients:
    """The clients of a run, of which some may attack."""
    attack, federation = runner.config.attack, runner.federation
    attackers = attack.attackers(runner.config.seed, federation.clients)
    return Attacked(clients, runner, attackers) if attackers else clients


class Attacked:
    """Runs all clients honestly, then forges the uploads of the attackers.

    Args:
        clients: the clients to train.
        runner: has a model that attackers may use.
        attackers: numbers of the clients that attack.
    """

    def __init__(self, clients: Clients, runner: ClientRunner, attackers: frozenset[int]) -> None:
        self.clients, self.runner, self.attackers = clients, runner, attackers

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        if any(task.measure for task in tasks):
            yield from self.clients.run(tasks)
            return
        outcomes = [_copy(outcome) for outcome in self.clients.run(tasks)]
        uploads = [outcome.upload for outcome in outcomes if outcome.upload is not None]
        hostile = [upload for upload in uploads if upload.client in self.attackers]
        if hostile:
            by_client = {task.client: task for task in tasks}
            known = self._knowledge(by_client[hostile[0].client].broadcast.model, uploads, len(hostile))
            for outcome in outcomes:
                if outcome.upload is not None and outcome.client in self.attackers:
                    outcome.upload = self._forge(outcome.upload, known, by_client[outcome.client])
        yield from outcomes

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer]:
        yield from self.clients.ask(questions)

    def close(self) -> None:
        self.clients.close()

    def _forge(self, own: Upload, known: Knowledge, task: Task) -> Upload:
        with torch.random.fork_rng(devices=[]), with_threads(task.threads):
            forged = self.runner.config.attack.forge(own, known, self.runner.client(task))
        forged.values["attacker"] = 1.0
        return forged

    def _knowledge(self, sent: State, uploads: Sequence[Upload], attackers: int) -> Knowledge:
        runner = self.runner
        leader = order(runner.config.seed, runner.federation.clients)[0]
        honest = [upload for upload in uploads if upload.client not in self.attackers] or list(uploads)
        return Knowledge(
            sent=sent,
            honest=honest,
            statistics=runner.statistics,
            clients=len(uploads),
            attackers=attackers,
            reach=self._reach(sent, honest),
            weight=self._weight(uploads),
            leader=runner.federation.images_of(leader, runner.config),
        )

    def _reach(self, sent: State, honest: Sequence[Upload]) -> float:
        """The distance that `participation.max_change` allows (see `fedssl.engines.intake`)."""
        limit = self.runner.config.participation.max_change
        names = [name for name, value in sent.items() if value.is_floating_point()]
        length = math.sqrt(sum(square(flat(sent[name])) for name in names))
        median = statistics.median_low(distance(upload.state, sent, names) for upload in honest)
        return BELOW * (limit * max(length, median) if limit else UNLIMITED * length)

    def _weight(self, uploads: Sequence[Upload]) -> int:
        median = statistics.median_low(upload.num_samples for upload in uploads)
        return max(1, int((self.runner.config.participation.max_weight or UNLIMITED) * median))


def _copy(outcome: Outcome) -> Outcome:
    """Training the next client may reuse the tensors of the previous one."""
    upload = outcome.upload
    if upload is not None:
        state = {name: value.clone() for name, value in upload.state.items()}
        outcome.upload = replace(upload, state=state)
    return outcome
