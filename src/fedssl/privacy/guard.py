"""The server's side of a run's privacy settings, round by round."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fedssl.aggregation.rule import is_counter
from fedssl.aggregation.scaled_sum import ScaledSum
from fedssl.methods.method import ServerTools
from fedssl.privacy.accountant import Ledger
from fedssl.privacy.fold import NoisyFold, SumFold, WeightedFold, fold_for, guarded
from fedssl.privacy.secure.client import FEWEST
from fedssl.privacy.secure.crypto import PUBLIC
from fedssl.privacy.secure.server import Ask, SecureSum
from fedssl.privacy.stream import Stream, derive_key
from fedssl.privacy.terms import CLIP, Terms
from fedssl.privacy.update import KEYS
from fedssl.state import Broadcast, ServerState, State, Upload

if TYPE_CHECKING:
    from fedssl.config import Config


EPSILON = "privacy/epsilon"  # the largest that a client has reported, among the values of the server


class Guard:
    """A run without privacy settings: nothing is changed."""

    withholds = False  # whether the server learns nothing about individual clients
    hides_loss = False  # whether clients keep their losses, which ε does not cover

    def sample(self, number: int) -> list[int] | None:
        """The clients of a round; None: those that `participation` selects."""
        return None

    def fewest(self, selected: int, min_clients: int) -> int:
        """The number of uploads that a round needs."""
        return min_clients

    def send(self, broadcast: Broadcast, server: ServerState) -> Broadcast:
        """The broadcast with the values that clients need."""
        return broadcast

    def start(self, server: ServerState, number: int, tools: ServerTools) -> ServerTools:
        """Begin a round; returns the fold for its uploads."""
        return tools

    def expected(self, model: State) -> State | None:
        """Names, shapes and types of an upload; None: those of the model."""
        return None

    def record(self, upload: Upload) -> None:
        """Record the ε that a client reports."""

    def collect(self, ask: Ask) -> dict[int, str]:
        """Collect the integers of the clients; returns why clients were lost, by client."""
        return {}

    def finish(self, server: ServerState) -> tuple[ServerState, dict[str, float], str]:
        """End a round; returns the next state, numbers for metrics.jsonl, and the reason to stop the run."""
        return server, {}, ""


class ExampleGuard(Guard):
    """A run with `privacy.mode=example`: clients add noise themselves and report the ε they have spent.

    Args:
        budget: `privacy.epsilon`.
    """

    hides_loss = True

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self.reported: list[tuple[float, float]] = []

    def record(self, upload: Upload) -> None:
        self.reported.append((upload.values.get("epsilon", math.inf), upload.values.pop("epsilon_next", 0.0)))

    def finish(self, server: ServerState) -> tuple[ServerState, dict[str, float], str]:
        """ε of the client that has spent most; the run ends before any client would exceed the budget."""
        spent = max([server.values.get(EPSILON, 0.0), *(epsilon for epsilon, _ in self.reported)])
        following = max((each for _, each in self.reported), default=0.0)
        self.reported.clear()
        server = replace(server, values={**server.values, EPSILON: spent})
        return server, {"epsilon": spent}, over_budget(following, self.budget)


def over_budget(following: float, budget: float) -> str:
    """Why the run has to stop (empty: the budget allows another round)."""
    if not budget or following <= budget:
        return ""
    return f"the next round would spend ε = {following:.4g}, and privacy.epsilon is {budget:g}"


class SumGuard(Guard):
    """A run whose uploads are only summed: with noise, by secure aggregation, or both.

    Args:
        config: the run's config.
        terms: the terms of the run.
        secret: where noise and sampling come from.
    """

    withholds = True

    def __init__(self, config: Config, terms: Terms, secret: bytes) -> None:
        self.config, self.terms, self.secret = config, terms, secret
        self.examples = ExampleGuard(terms.privacy.epsilon) if terms.privacy.by_example else None
        self.hides_loss = self.examples is not None
        self.fold: SumFold | None = None

    def sample(self, number: int) -> list[int] | None:
        """Sample each client with the same probability, independently: the accountant assumes this."""
        if not self.terms.privacy.by_client:
            return None
        drawn = Stream(derive_key(self.secret, number, "participation")).uniform(self.terms.clients)
        return [int(client) for client in (drawn <= self.terms.rate).nonzero()[0]]

    def fewest(self, selected: int, min_clients: int) -> int:
        """A round with few sampled clients continues, because their number must not be revealed."""
        return min(selected, min_clients) if self.terms.privacy.by_client else min_clients

    def send(self, broadcast: Broadcast, server: ServerState) -> Broadcast:
        if not self.terms.privacy.quantile:
            return broadcast
        return replace(broadcast, values={**broadcast.values, CLIP: self.terms.clip(server.values)})

    def start(self, server: ServerState, number: int, tools: ServerTools) -> ServerTools:
        key = derive_key(self.secret, number, "noise", "server")
        assert isinstance(tools.rule, ScaledSum)  # checked before the run begins
        rule = self.terms.rule_at(tools.rule, number)
        self.fold = fold_for(self.terms, server.model, self.terms.clip(server.values), rule, key)
        return replace(tools, rule=guarded(self.fold))

    def expected(self, model: State) -> State:
        if self.terms.privacy.secure:
            return {KEYS: torch.zeros(2 * PUBLIC, dtype=torch.uint8)}
        return {
            name: torch.empty_like(old, dtype=torch.float32)
            for name, old in model.items()
            if not is_counter(old)
        }

    def record(self, upload: Upload) -> None:
        if self.examples is not None:
            self.examples.record(upload)

    def collect(self, ask: Ask) -> dict[int, str]:
        fold, privacy = self.fold, self.terms.privacy
        if not privacy.secure or fold is None:
            return {}
        if privacy.by_client and len(fold.keys) < FEWEST:  # the server then adds all the noise
            return dict.fromkeys(fold.keys, f"fewer than {FEWEST} clients are not summed")
        summed = SecureSum(ask, fold.total, privacy.threshold).collect(fold.keys)
        fold.take(summed)
        return summed.lost

    def finish(self, server: ServerState) -> tuple[ServerState, dict[str, float], str]:
        fold, numbers = self.fold, dict[str, float]()
        if isinstance(fold, WeightedFold):
            means = {} if self.hides_loss else fold.means
            numbers = {**means, "quantisation": fold.error, "views": fold.views}
            if self.examples is None:
                return server, numbers, ""
            server, spent, stop = self.examples.finish(server)
            return server, numbers | spent, stop
        assert isinstance(fold, NoisyFold)
        if self.terms.privacy.quantile:
            numbers["clip"] = fold.clip
        return self._spend(server, fold, numbers)

    def _spend(
        self, server: ServerState, fold: NoisyFold, numbers: dict[str, float]
    ) -> tuple[ServerState, dict[str, float], str]:
        """Add the round to the ledger, and check whether the budget allows another one."""
        privacy = self.terms.privacy
        ledger = Ledger.read(server.values).after(self.terms.release)
        values = {**server.values, **ledger.values()}
        values |= {CLIP: fold.next_clip} if privacy.quantile else {}
        numbers["epsilon"] = ledger.epsilon(privacy.delta)
        return replace(server, values=values), numbers, self._over_budget(ledger)

    def _over_budget(self, ledger: Ledger) -> str:
        privacy = self.terms.privacy
        if not privacy.epsilon:
            return ""
        return over_budget(ledger.after(self.terms.release).epsilon(privacy.delta), privacy.epsilon)
