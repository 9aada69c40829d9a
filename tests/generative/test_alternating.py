"""Algorithm 1, step by step: turns, two time scales, decay, loopless clients, the server's mean update."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedssl.aggregation.fedavg import FedAvg
from fedssl.aggregation.server_optimizer import ServerOptimizer
from fedssl.config import load
from fedssl.data.federation import federate
from fedssl.engines.memory import MemoryStore
from fedssl.engines.network import build_network
from fedssl.engines.runner import ClientRunner
from fedssl.engines.tasks import Task
from fedssl.evaluation.loaded import load_run
from fedssl.generative.sampling import ClientGenerators
from fedssl.methods.client import Client
from fedssl.methods.method import ServerTools
from fedssl.methods.optimizers import Optimizer
from fedssl.methods.padpaf import PaDPaF
from fedssl.objectives.generative.adversarial import split_parameters
from fedssl.state import ServerState, Upload
from tests.generative.small import KINDS, run_of


def a_client(folder: Path, round: int = 1, **keys: Any) -> Client:
    config = load(KINDS["gan"], keys)
    federation = federate(config)
    network = build_network(config, federation.train.size, 1, 10)
    runner = ClientRunner(config, federation, network, MemoryStore(folder, 64))
    server = runner.first_server()
    task = Task(round, 0, config.method.broadcast(server, 0, round))
    client = runner.client(task)
    runner._receive(client, task)
    return client


Steps = list[tuple[str, float]]


def trained(client: Client, method: PaDPaF, monkeypatch: pytest.MonkeyPatch) -> Steps:
    """The players that took a step, with their learning rates, in order."""
    seen: Steps = []
    real, discriminators = Optimizer.step, {id(value) for value in split_parameters(client.model)[0].values()}

    def step(self: Optimizer) -> None:
        who = {"D" if id(value) in discriminators else "G" for value in self.parameters}
        seen.append(("".join(who), self.lr))
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(Optimizer, "step", step)
        method.train(client)
    return seen


def order(steps: Steps) -> str:
    return "".join(who for who, _ in steps)


def test_the_generator_trains_after_every_third_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = a_client(tmp_path, **{"train.epochs": 7 / 3})  # 30 images: 3 steps an epoch
    assert order(trained(client, PaDPaF(name="padpaf"), monkeypatch)) == "DDDGDDDGD"
    twos = PaDPaF(name="padpaf", discriminator_steps=2)
    assert order(trained(client, twos, monkeypatch)) == "DDGDDGDDGD"


def test_a_round_shorter_than_that_trains_the_generator_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = a_client(tmp_path, **{"train.epochs": 0.3})
    assert order(trained(client, PaDPaF(name="padpaf"), monkeypatch)) == "DG"


def test_rates_differ_by_player_and_decay_over_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faster = PaDPaF(name="padpaf", decay=0.9, discriminator_rate=4)
    for round, method in ((1, PaDPaF(name="padpaf")), (3, faster)):
        rates = dict(trained(a_client(tmp_path, round=round), method, monkeypatch))
        slow = 1e-3 * (0.81 if round == 3 else 1)
        assert rates["G"] == pytest.approx(slow)
        assert rates["D"] == pytest.approx(slow * (4 if round == 3 else 2))


def test_both_optimizers_have_the_papers_betas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = Optimizer.__init__

    def init(self: Optimizer, *args: Any) -> None:
        real(self, *args)
        made.append(self.betas)

    monkeypatch.setattr(Optimizer, "__init__", init)
    client = a_client(tmp_path)
    PaDPaF(name="padpaf").train(client)
    PaDPaF(name="padpaf", beta1=0.3, beta2=0.7).train(client)
    assert made == [(0.5, 0.9)] * 2 + [(0.3, 0.7)] * 2


def test_a_loopless_client_has_the_same_mean_number_of_steps(tmp_path: Path) -> None:
    client = a_client(tmp_path, **{"train.epochs": 2.0})
    method = PaDPaF(name="padpaf", loopless=True)
    drawn = [method._epochs(replace(client, round=round), "train") * 3 for round in range(1, 1500)]
    assert all(steps == int(steps) >= 1 for steps in drawn)
    assert sum(drawn) / len(drawn) == pytest.approx(6, rel=0.1)
    # Geometric: the variance is (1 − p) / p² with p = 1/6.
    assert torch.tensor(drawn).var() == pytest.approx(30, rel=0.25)
    assert method._epochs(client, "train") == method._epochs(client, "train")
    assert PaDPaF(name="padpaf")._epochs(client, "train") == 2.0


def test_the_server_steps_along_the_plain_mean_of_updates() -> None:
    """Adam's first step is lr·sign(mean update), however many images a client has (line 17)."""
    server = ServerState({"w": torch.tensor([1.0, 1.0])})
    optimizer = ServerOptimizer(optimizer="adam", lr=0.1, beta1=0.5, beta2=0.9, decay=0.5)
    tools = ServerTools(FedAvg(name="fedavg"), optimizer, frozenset(), frozenset())
    uploads = [
        Upload(0, {"w": torch.tensor([3.0, 1.0])}, num_samples=1),
        Upload(1, {"w": torch.tensor([0.0, 0.0])}, num_samples=1000),
    ]
    for round, expected in ((1, [1.1, 0.9]), (3, [1.025, 0.975])):  # the third round's rate is a quarter
        aggregate = PaDPaF(name="padpaf").aggregate(server, round, tools)
        for upload in uploads:
            aggregate.add(upload)
        assert aggregate.finish().model["w"].tolist() == pytest.approx(expected, abs=1e-6)


def test_losses_of_both_players_are_logged(gan: Any) -> None:
    for client in gan.metrics[-1]["clients"]:
        assert {"loss", "generator_loss", "divergence"} <= set(client)


# --- the baselines ----------------------------------------------------------------------------------


def test_ditto_shares_everything_and_keeps_a_personal_model(tmp_path: Path) -> None:
    client = a_client(tmp_path, method="padpaf-ditto")
    method = load(KINDS["gan"], {"method": "padpaf-ditto"}).method
    shared = method.shares(client.model)
    assert set(shared) == {
        name for name, _ in client.model.named_parameters() if not name.startswith("personal.")
    }
    assert "style_encoder.body.0.conv1.weight" in shared
    assert any(name.startswith("personal.style_encoder") for name in method.keeps(client.model))


def test_the_ablations_share_everything_or_nothing(tmp_path: Path) -> None:
    """After a round, clients start the next one with the same parameters, or each with its own."""
    for name, alike in (
        ("padpaf-shared", {"encoder", "vectorizer"}),
        ("padpaf", {"encoder"}),
        ("padpaf-alone", set()),
    ):
        client = a_client(tmp_path / name, method=name)
        parameters = {path for path, _ in client.model.named_parameters()}
        shared = set(load(KINDS["gan"], {"method": name}).method.shares(client.model))
        if name != "padpaf":
            assert shared == (parameters if name == "padpaf-shared" else set())
        generators = ClientGenerators(
            load_run(run_of("gan", tmp_path / f"{name} run", method=name, rounds=1).directory, {})
        )
        for part in ("encoder", "vectorizer"):
            one, two = (dict(generators.model(client).part(part).named_parameters()) for client in (0, 1))
            same = all(torch.equal(one[key], two[key]) for key in one)
            assert same == (part in alike), (name, part)


def distances(folder: Path, **keys: Any) -> dict[str, float]:
    """The distances of the federated and the personal model from the received one after a round."""
    method = {"name": "padpaf-ditto", **keys}
    client = a_client(folder, method=method, **{"train.epochs": 4.0, "train.lr": 0.01})
    load(KINDS["gan"], {"method": method}).method.train(client)
    state = client.model.state_dict()
    return {
        prefix: float(
            sum((state[prefix + name] - value).square().sum() for name, value in client.received.items())
        )
        for prefix in ("", "personal.")
    }


def test_a_larger_mu_keeps_a_model_closer(tmp_path: Path) -> None:
    weak, strong, prox = (
        distances(tmp_path, mu=0.0),
        distances(tmp_path, mu=10.0),
        distances(tmp_path, mu=0.0, fedprox=10.0),
    )
    assert strong["personal."] < 0.8 * weak["personal."]
    assert strong[""] == weak[""]
    assert prox[""] < 0.8 * weak[""]
    assert prox["personal."] == weak["personal."]


@pytest.mark.parametrize(
    "method",
    [{"name": "padpaf-ditto"}, {"name": "padpaf-ditto", "fedprox": 1.0}, "fedavg", "standalone", "ditto"],
)
def test_other_methods_train_the_gan_too(method: Any, tmp_path: Path) -> None:
    run = run_of("gan", tmp_path / "run", method=method, rounds=1)
    assert run.metrics[0]["failed"] == []


def test_bad_options_are_refused() -> None:
    from fedssl.errors import ConfigError

    for keys, text in (
        ({"method.discriminator_steps": 0}, "discriminator_steps=0"),
        ({"method.decay": 1.5}, "decay=1.5"),
        ({"objective.adversarial": "hing"}, "did you mean hinge"),
        ({"objective.patch": 3}, "patch=3"),
    ):
        with pytest.raises(ConfigError, match=text):
            load(KINDS["gan"], keys)
