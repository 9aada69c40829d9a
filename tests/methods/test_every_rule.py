"""Every method, the README's among them, with every aggregation rule: on the server and on clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.generative.small import KINDS
from tests.methods.readme import write_readme_method
from tests.small import SMALL

from fedssl.aggregation import AGGREGATIONS, build
from fedssl.aggregation.rule import Rule
from fedssl.aggregation.scaled_sum import ScaledSum
from fedssl.config import Config, load
from fedssl.data.federation import federate
from fedssl.engines.local import InProcess
from fedssl.engines.loop import RoundLoop
from fedssl.engines.memory import MemoryStore
from fedssl.engines.network import build_network
from fedssl.engines.runner import ClientRunner
from fedssl.errors import ConfigError, RunError
from fedssl.methods import METHODS
from fedssl.methods.client import Client
from fedssl.methods.training import Training
from fedssl.state import ServerState, restore, snapshot

# Three clients of nine, eight and eight images, and one step a round.
FEW = {"data.limit": 25, "partition": {"scheme": "iid", "clients": 3}, "train.batch_size": 8, "rounds": 3}

# Methods whose server needs more than the sum of what clients scaled, and what they say.
REFUSED = {
    "fedema": r"set method\.scaler",
    "featarc": r"set method\.clusters=1",
    "relay": "passes them from client to client",
    "padpaf": r"PaDPaF's server takes the unweighted mean",
    "padpaf-shared": r"PaDPaF's server takes the unweighted mean",
    "padpaf-ditto": r"PaDPaF's server takes the unweighted mean",
}

# One client or route, or few clients in each cluster, are too few for rules that compare uploads.
ONE_UPLOAD = {
    "relay": ("krum", "trimmed-mean"),
    "centralized": ("krum", "trimmed-mean"),
    "featarc": ("krum", "trimmed-mean"),
}


def rules() -> list[Rule]:
    """Every rule, and every rule that clients can apply also on the client side."""
    names = [
        name for name in AGGREGATIONS if name != "fltrust"
    ]  # needs a root set: tests/engines/test_attacked.py
    every = [build(name, **({"malicious": 0} if name == "krum" else {})) for name in names]
    return [*every, *(build(rule.name, client_side=True) for rule in every if isinstance(rule, ScaledSum))]


def config_of(method: str, folder: Path) -> Config:
    if method == "readme":
        return load(SMALL, {**FEW, "method": {"name": write_readme_method(folder), "keep": 0.3}})
    if method.startswith("padpaf"):
        return load(KINDS["gan"], {**FEW, "method": {"name": method}, "shift": {"name": "none"}})
    options = {"fedstyle": {"generator_hidden": 16}, "featarc": {"clusters": 2}}.get(method, {})
    objective = "byol" if method in ("fedema", "fedu", "constant-mu") else "simclr"
    return load(SMALL, {**FEW, "objective": objective, "method": {"name": method, **options}})


class Rounds:
    """Rounds of one method with changing rules; each client is trained only once per round."""

    def __init__(self, config: Config, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.config, self.federation = config, federate(config)
        images = self.federation.train
        network = build_network(config, images.size, images.channels, len(images.classes))
        self.memories = MemoryStore(folder / "memories", 16)
        self.runner = ClientRunner(config, self.federation, network, self.memories)
        self.memory_rounds: dict[int, int] = {}
        trained: dict[tuple[int, int], tuple[dict[str, torch.Tensor], dict[str, float], Training]] = {}
        train = type(config.method).train

        def replay(method: Any, client: Client) -> Training:
            key = client.round, client.id
            if key not in trained:
                training = train(method, client)
                trained[key] = snapshot(client.model), dict(client.notes), training
            state, notes, training = trained[key]
            restore(client.model, state)
            client.notes = dict(notes)
            return training

        monkeypatch.setattr(type(config.method), "train", replay)

    def play(self, server: ServerState, number: int, rule: Rule) -> ServerState:
        config = self.config.model_copy(update={"aggregation": rule})
        self.runner.config = config
        engine = InProcess(self.runner)
        loop = RoundLoop(
            config, self.runner.model, self.federation, engine, self.memories, self.runner.guard()
        )
        loop.memory_rounds = dict(self.memory_rounds)
        after, report = loop.round(server, number)
        assert not [outcome.failure for outcome in report.outcomes if outcome.failure]
        assert len(report.outcomes) == self.federation.clients
        if number == 1:
            self.memory_rounds = loop.memory_rounds
        return after


@pytest.mark.parametrize("method", [*METHODS, "readme"])
def test_a_method_works_with_every_rule(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(config_of(method, tmp_path), tmp_path, monkeypatch)
    first = rounds.runner.first_server()
    second = rounds.play(first, 1, build("fedavg"))
    by_rule: dict[str, ServerState] = {}
    for rule in rules():
        if method in REFUSED and getattr(rule, "client_side", False):
            for server, number in ((first, 1), (second, 2)):
                with pytest.raises(ConfigError, match=REFUSED[method]):
                    rounds.play(server, number, rule)
            continue
        if method in ONE_UPLOAD and rule.name in ONE_UPLOAD[method]:
            with pytest.raises(RunError, match=r"or use more clients per round"):
                rounds.play(second, 2, rule)
            continue
        after = rounds.play(second, 2, rule)
        for state in after.states:
            assert all(bool(value.isfinite().all()) for value in state.values())
        if rule.name in by_rule:  # the same rule, applied by clients
            for state, expected in zip(after.states, by_rule[rule.name].states, strict=True):
                for name, value in state.items():
                    where = f"{rule.name}: {name}"
                    torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-5, msg=where)
        by_rule[rule.name] = after
    if method not in ("standalone", "padpaf-alone", "centralized"):  # one client, or nothing that is sent
        plain, layers = by_rule["fedavg"].states[0], by_rule["l-dawa"].states[0]
        assert any(not torch.equal(plain[name], layers[name]) for name in plain)
