"""FedProx, FedPer, FedRep, Ditto, APFL and FedStyle: one step by a naive second implementation, what stays
private, and where they are FedAvg."""

import copy

import pytest
import torch
from tests.onestep import (
    DECAY,
    LR,
    METHODS,
    PRIVATE,
    TOY,
    Federation,
    assert_close,
    descend,
    nt_xent,
    projections,
)
from tests.small import SMALL, digest, small_run
from tests.toys import a_client as bare

from fedssl import experiment
from fedssl.config import load
from fedssl.errors import ConfigError
from fedssl.evaluation.loaded import load_run
from fedssl.listener import Listener
from fedssl.methods import fedprox
from fedssl.methods.fedprox import FedProx
from fedssl.methods.proximal import proximal
from fedssl.models.model import Model, Part
from fedssl.rng import torch_rng
from fedssl.state import Broadcast


def squares(module, anchor):
    return sum(((a - b) ** 2).sum() for a, b in zip(module.parameters(), anchor.parameters(), strict=True))


def fedavg_step(toy, client, model):
    _, views = toy.views(client)
    descend(nt_xent(*projections(model, views)), [model.part("encoder"), model.part("projector")])


def fedprox_step(toy, client, model):
    """Two steps, because the penalty and its gradient are zero at the first one."""
    received = copy.deepcopy(model)
    order, draws = (torch_rng(0, 1, client, f"train/{what}") for what in ("order", "views"))
    own = toy.runner.federation.images_of(client, toy.config)
    parts = [model.part("encoder"), model.part("projector")]
    momenta = None
    for _ in range(2):
        images, _ = own.batch(torch.randperm(8, generator=order))
        loss = nt_xent(*projections(model, toy.runner.views(images, draws)))
        loss = loss + 0.7 / 2 * squares(model, received)
        parameters = [value for part in parts for value in part.parameters()]
        gradients = torch.autograd.grad(loss, parameters)
        steps = [g + DECAY * p.detach() for g, p in zip(gradients, parameters, strict=True)]
        momenta = steps if momenta is None else [0.9 * m + s for m, s in zip(momenta, steps, strict=True)]
        with torch.no_grad():
            for value, step in zip(parameters, momenta, strict=True):
                value -= LR * step


def fedrep_step(toy, client, model):
    _, views = toy.views(client, "heads")
    descend(nt_xent(*projections(model, views)), [model.part("projector")])
    _, views = toy.views(client)
    descend(nt_xent(*projections(model, views)), [model.part("encoder")])


def ditto_step(toy, client, model):
    fedavg_step(toy, client, model)
    personal = model.part("personal")
    _, views = toy.views(client, "personal")
    loss = nt_xent(*projections(personal, views))
    for name in ("encoder", "projector"):
        loss = loss + 0.7 / 2 * squares(personal.part(name), model.part(name))
    own = [personal.part("encoder"), personal.part("projector")]
    descend(loss, own)


def apfl_step(toy, client, model):
    personal = model.part("personal")
    _, views = toy.views(client)
    with torch.no_grad():
        g1, g2 = projections(copy.deepcopy(model), views)
    p1, p2 = projections(personal, views)
    loss = nt_xent(0.3 * g1 + 0.7 * p2, 0.3 * g2 + 0.7 * p1)
    descend(loss, [personal.part("encoder"), personal.part("projector")])
    fedavg_step(toy, client, model)


NAIVE = {
    "fedprox": fedprox_step,
    "fedper": fedavg_step,
    "fedrep": fedrep_step,
    "ditto": ditto_step,
    "apfl": apfl_step,
}


@pytest.mark.parametrize("name", NAIVE)
def test_a_step_of_two_clients_is_that_of_a_naive_implementation(tmp_path, name):
    toy = Federation(tmp_path, METHODS[name], **({"train.epochs": 2.0} if name == "fedprox" else {}))
    for client in range(2):
        upload = toy.run(client)
        kept = toy.memories.load(client, 1).state if PRIVATE[name] else {}
        expected = toy.naive()
        NAIVE[name](toy, client, expected)
        values = expected.state_dict()
        found = {**upload, **kept}
        assert_close(found, values)
        moved = [part for part in found if not torch.equal(found[part], toy.network.initial[part])]
        assert any(part.startswith("encoder") for part in moved)
        assert all(any(part.startswith(own) for part in moved) for own in PRIVATE[name])


@pytest.mark.parametrize("start", ["global", "own"])
def test_fedprox_starts_from_the_global_model_or_from_its_own_by_hand(start):
    """w = 1 was its own last model, w_g = 3 is received; μ = 0.5 and a loss of w²: one step of 0.1.

    From the global model: 3 − 0.1·6 = 2.4, without a pull yet; from its own: 1 − 0.1·(2 + 0.5·(1 − 3)) = 0.9.
    """
    model = Model(encoder=Part(torch.nn.Linear(1, 1, bias=False)))
    method = FedProx(mu=0.5, start=start)
    client = bare(model, round=2)
    client.uploads = frozenset({"encoder.weight"})
    memory = {"encoder.weight": torch.tensor([[1.0]])} if method.keeps(model) else {}
    assert bool(memory) == (start == "own") == method.personalizes
    broadcast = Broadcast({"encoder.weight": torch.tensor([[3.0]])})
    method.receive(client, broadcast, memory)
    client.received = method.reference_model(client, broadcast)
    weight = model.part("encoder").weight

    def one_step(client, loss):
        value = loss(None)
        value.backward()
        with torch.no_grad():
            weight.sub_(0.1 * weight.grad)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fedprox, "train_locally", one_step)
        patch.setattr(fedprox, "objective_loss", lambda client: lambda batch: weight.square().sum())
        method.train(client)
    assert float(weight.detach()) == pytest.approx({"global": 2.4, "own": 0.9}[start])


def test_a_fedprox_client_that_starts_from_its_own_model_keeps_it(tmp_path):
    toy = Federation(tmp_path, {"name": "fedprox", "mu": 0.7, "start": "own"})
    first = toy.run(0)  # a newcomer starts from the global model
    plain = Federation(tmp_path / "plain", METHODS["fedprox"])
    assert_close(first, plain.run(0))
    kept = toy.memories.load(0, 1).state
    assert all(torch.equal(kept[name], value) for name, value in first.items())
    other = {name: torch.zeros_like(value) for name, value in first.items()}
    received = toy.runner.receive(toy.task(0, other, round=2, memory_round=1)).state_dict()
    assert all(torch.equal(received[name], value) for name, value in first.items())


def test_the_penalty_by_hand():
    own, anchor = [torch.tensor([3.0, 0.0]), torch.tensor([[1.0]])], [torch.zeros(2), torch.tensor([[5.0]])]
    for weight in own:
        weight.requires_grad_()
    penalty = proximal(own, anchor, mu=2.0)
    assert float(penalty.detach()) == 9 + 16
    (3 * penalty).backward()
    assert [weight.grad.tolist() for weight in own] == [[18.0, 0.0], [[-24.0]]]
    assert all(fixed.grad is None for fixed in anchor)
    with pytest.raises(ValueError, match="2 parameters and 1 anchors"):
        proximal(own, anchor[:1], mu=2.0)


# --- what stays with the client -----------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("objective", ["simclr", "byol"])
def test_private_tensors_are_never_uploaded_and_no_server_changes_them(tmp_path, name, objective):
    if (name, objective) == ("apfl", "byol"):
        pytest.skip("has no meaning")
    toy = Federation(tmp_path, METHODS[name], objective=objective)
    private = PRIVATE[name] + (("target.",) if objective == "byol" else ())
    if objective == "byol" and "projector." in private:
        private += ("predictor.",)
    upload = toy.run(0)
    assert upload
    assert not [tensor for tensor in upload if tensor.startswith(private)]
    if not private:
        return
    before = {tensor: value.clone() for tensor, value in toy.memories.load(0, 1).state.items()}
    assert {tensor for tensor in toy.network.initial if tensor.startswith(private)} == set(before)
    other = {tensor: torch.randn_like(v) if v.is_floating_point() else v for tensor, v in upload.items()}
    toy.run(1, model=other)  # another client in between, on the same model
    model = toy.runner.receive(toy.task(0, model=other, round=2, memory_round=1))
    received = model.state_dict()
    assert all(torch.equal(received[tensor], before[tensor]) for tensor in before)
    assert all(torch.equal(received[tensor], other[tensor]) for tensor in other)


class Stop(Exception):
    pass


class StopInRoundThree(Listener):
    def round(self, line):
        if line["round"] == 3:
            raise Stop


def memories(directory):
    """Every client's last memory, as bytes."""
    return [max(folder.iterdir()).read_bytes() for folder in sorted(directory.memories.iterdir())]


@pytest.mark.parametrize("name", [name for name in METHODS if PRIVATE[name]])
def test_private_tensors_survive_a_restart(tmp_path, name):
    keys = {**TOY, "method": METHODS[name], "checkpoint.every": 2}
    whole = experiment.run(load(SMALL, keys), tmp_path / "whole", Listener())
    with pytest.raises(Stop):
        experiment.run(load(SMALL, keys), tmp_path / "stopped", StopInRoundThree())
    resumed = experiment.resume(tmp_path / "stopped", Listener())
    assert memories(resumed) == memories(whole)
    assert len(memories(whole)) == 2
    assert digest(resumed.path) == digest(whole.path)


# --- where they are FedAvg ------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["simclr", "byol"])
@pytest.mark.parametrize(
    "method",
    [
        {"name": "fedprox", "mu": 0.0},
        {"name": "ditto"},
        {"name": "apfl"},
        {"name": "fedstyle", "infusion": 0.0, "style_epochs": 1},
    ],
    ids=lambda method: method["name"],
)
def test_the_global_encoder_is_that_of_fedavg_bit_for_bit(tmp_path, method, objective):
    if (method["name"], objective) == ("apfl", "byol"):
        pytest.skip("has no meaning")
    keys = {**TOY, "rounds": 2, "objective": objective}
    plain = small_run(tmp_path / "plain", method="fedavg", **keys)
    assert digest(small_run(tmp_path / "other", method=method, **keys)) == digest(plain)


@pytest.mark.parametrize("name", ["fedprox", "fedrep", "fedstyle"])
def test_other_methods_have_another_global_encoder(tmp_path, name):
    keys = {**TOY, "rounds": 1, "train.epochs": 2}  # the first step starts at the point that FedProx pulls to
    plain = small_run(tmp_path / "plain", method="fedavg", **keys)
    assert digest(small_run(tmp_path / "other", method=METHODS[name], **keys)) != digest(plain)


def test_a_large_mu_keeps_the_model_in_place(tmp_path):
    def moved(mu):
        keys = {**TOY, "rounds": 1, "train.epochs": 6, "train.lr": 0.02}
        run = small_run(tmp_path / str(mu), method={"name": "fedprox", "mu": mu}, **keys)
        return run.metrics[0]["divergence"]

    assert moved(20.0) < moved(1.0) < moved(0.0)


# --- personal encoders ---------------------------------------------------------------------------


def personal(run, client=0):
    finished = load_run(run.directory, {})
    return finished, finished.models.personal(finished.server, finished.memory_rounds, client)


def test_encoders_of_two_clients_are_independent_copies(tmp_path):
    finished, first = personal(small_run(tmp_path / "a", method={"name": "standalone"}, **TOY))
    before = {name: value.clone() for name, value in first.state_dict().items()}
    second = finished.models.personal(finished.server, finished.memory_rounds, 1)
    assert not torch.equal(first.conv1.weight, second.conv1.weight)
    assert all(torch.equal(value, before[name]) for name, value in first.state_dict().items())


def test_ditto_evaluates_its_personal_encoder(tmp_path):
    finished, encoder = personal(small_run(tmp_path / "a", method=METHODS["ditto"], **TOY))
    kept = finished.models.runner.memories.load(0, finished.memory_rounds[0]).state
    own = encoder.state_dict()
    assert all(torch.equal(own[name], kept[f"personal.encoder.{name}"]) for name in own)


def test_apfl_evaluates_mixed_features(tmp_path):
    finished, encoder = personal(small_run(tmp_path / "a", method=METHODS["apfl"], **TOY))
    model = finished.models.runner.model.eval()
    images = torch.rand(3, 1, 8, 8)
    theirs, mine = model.part("encoder")(images), model.part("personal.encoder")(images)
    torch.testing.assert_close(encoder.eval()(images), 0.3 * theirs + 0.7 * mine)


def test_a_personal_model_starts_as_the_first_received_model(tmp_path):
    toy = Federation(tmp_path, METHODS["ditto"], objective="byol")
    other = {name: torch.full_like(value, 3) for name, value in toy.first.items()}
    toy.run(1)  # leaves its traces in the model
    received = toy.runner.receive(toy.task(0, model=other, round=3)).state_dict()
    for name, source in (("encoder.conv1.weight", "encoder"), ("projector.0.weight", "projector")):
        assert torch.equal(received[f"personal.{name}"], other[name]), source
        assert torch.equal(received[f"personal.target.{name}"], other[name])  # a copy of a copy


@pytest.mark.parametrize("objective", ["byol", "moco-v2", "supervised"])
def test_apfl_names_supported_objectives(tmp_path, objective):
    with pytest.raises(ConfigError, match=r"simclr, simsiam or barlow-twins"):
        Federation(tmp_path, METHODS["apfl"], objective=objective)


@pytest.mark.parametrize("method", ["fedper", "fedrep"])
def test_the_classifier_of_a_supervised_run_stays_local_too(tmp_path, method):
    toy = Federation(tmp_path, {"name": method}, objective="supervised")
    assert {name.split(".")[0] for name in toy.run(0)} == {"encoder"}
    assert {name.split(".")[0] for name in toy.memories.load(0, 1).state} == {"classifier"}
