import numpy as np
import pytest
import torch
from tests.onestep import Federation
from tests.small import small_run
from tests.toys import Vector, a_client, byol_like, upload_of

from fedssl.aggregation.fedavg import FedAvg as Mean
from fedssl.aggregation.server_optimizer import ServerOptimizer
from fedssl.methods.constant_mu import ConstantMu
from fedssl.methods.ema import convolutions, mean_change
from fedssl.methods.fedema import FedEMA
from fedssl.methods.fedu import FedU
from fedssl.methods.method import ENCODER, ServerTools
from fedssl.models.encoders import build_encoder
from fedssl.models.model import Model, Part
from fedssl.models.options import ModelConfig
from fedssl.state import Broadcast, ServerState, mix, snapshot

# Own model (3, 4 | 12), global model zero: ‖W_g − W_k‖ = √(9 + 16 + 144) = 13.
OWN = {"encoder.weight": [3.0, 4.0], "projector.weight": [12.0], "predictor.weight": [8.0]}


def situation(round=3, own_round=2, **values):
    """A client with OWN in memory, a target at 7, a queue at 5; and a global model at zero."""
    model = byol_like()
    client = a_client(model, round=round)
    state = snapshot(model)
    for name, numbers in OWN.items():
        state[name] = torch.tensor(numbers)
    state["target.encoder.weight"] = torch.tensor([7.0, 7.0])
    state["queue.keys"] = torch.tensor([5.0, 5.0])
    state["encoder.norm.running_mean"] = torch.tensor([9.0])
    method = FedEMA()
    received = {name: torch.zeros_like(state[name]) for name in method.shares(model)}
    client.notes |= {"round": own_round, **values}
    return client, received, state


def test_mu_and_both_updates_by_hand():
    client, received, memory = situation()
    log = FedEMA().receive(client, Broadcast(received, values={"lambda": 0.5 / 13}), memory)
    assert log["mu"] == pytest.approx(0.5)
    assert log["mu_capped"] == 0.0
    assert log["divergence_before"] == pytest.approx(13)
    state = client.model.state_dict()
    assert state["encoder.weight"].tolist() == [1.5, 2.0]
    assert state["projector.weight"].tolist() == [6.0]
    assert state["predictor.weight"].tolist() == [4.0]
    assert state["target.encoder.weight"].tolist() == [7.0, 7.0]  # stays with the client
    assert state["queue.keys"].tolist() == [5.0, 5.0]
    assert state["encoder.norm.running_mean"].tolist() == [0.0]  # statistics come from the global model


@pytest.mark.parametrize(
    ("apply_to", "encoder", "predictor"), [("encoder", 1.5, 0.0), ("predictor", 0.0, 4.0)]
)
def test_ema_on_one_part(apply_to, encoder, predictor):
    client, received, memory = situation()
    FedEMA(apply_to=apply_to).receive(client, Broadcast(received, values={"lambda": 0.5 / 13}), memory)
    assert float(client.model.state_dict()["encoder.weight"][0]) == encoder
    assert float(client.model.state_dict()["predictor.weight"][0]) == predictor


def test_mu_is_at_most_one():
    client, received, memory = situation()
    log = FedEMA(scaler=10.0).receive(client, Broadcast(received), memory)
    assert log["mu"] == log["mu_capped"] == 1.0
    assert client.model.state_dict()["encoder.weight"].tolist() == OWN["encoder.weight"]


@pytest.mark.parametrize(("values", "own_round"), [({}, 2), ({"lambda": 0.1}, 1)])
def test_without_a_scaler_or_after_a_round_off_everything_is_the_global_model(values, own_round):
    client, received, memory = situation(own_round=own_round)
    received["encoder.weight"] = torch.tensor([1.0, 2.0])
    assert FedEMA().receive(client, Broadcast(received, values=values), memory) == {}
    state = client.model.state_dict()
    assert state["encoder.weight"].tolist() == [1.0, 2.0]
    assert state["target.encoder.weight"].tolist() == [1.0, 2.0]  # line 14 of Algorithm 1: the target too
    assert state["predictor.weight"].tolist() == [0.0]
    assert state["queue.keys"].tolist() == [5.0, 5.0]


def tools(model):
    method = FedEMA()
    shared = set(method.shares(model))
    return ServerTools(
        Mean(), ServerOptimizer(), model.statistics() & shared, frozenset(model.parameters_under(ENCODER))
    )


def aggregate(method, model, server, uploads, round=1):
    fold = method.aggregate(server, round, tools(model))
    for upload in uploads:
        fold.add(upload)
    return fold.finish()


def test_the_autoscaler_by_hand_and_only_once():
    model = byol_like()
    method = FedEMA(tau=0.7)
    zero = {name: torch.zeros_like(value) for name, value in snapshot(model, method.shares(model)).items()}
    own = {**zero, "encoder.weight": torch.tensor([6.0, 8.0]), "projector.weight": torch.tensor([24.0])}
    # The mean of `own` and zero is (3, 4 | 12): both clients are √(9 + 16 + 144) = 13 away from it.
    first = aggregate(method, model, ServerState(zero), [upload_of(0, own), upload_of(1, zero)])
    assert first.model["encoder.weight"].tolist() == [3.0, 4.0]
    assert first.values == pytest.approx({"lambda/0": 0.7 / 13, "lambda/1": 0.7 / 13})
    assert method.broadcast(first, 0, 2).values == pytest.approx({"lambda": 0.7 / 13})
    assert method.broadcast(first, 5, 2).values == {}
    second = aggregate(method, model, first, [upload_of(0, zero), upload_of(5, own)], round=2)
    assert second.values["lambda/0"] == first.values["lambda/0"]
    assert second.values["lambda/5"] == pytest.approx(0.7 / 13)


def test_a_single_client_has_zero_divergence():
    model = byol_like()
    method = FedEMA()
    state = snapshot(model, method.shares(model))
    assert aggregate(method, model, ServerState(state), [upload_of(0, state)]).values == {"lambda/0": 0.0}


def test_mixing_is_exact_at_both_ends():
    own, received = torch.tensor([0.1, -0.0]), torch.tensor([0.7, -0.0])
    assert mix({"w": own}, {"w": received}, 0.0)["w"] is received
    assert mix({"w": own}, {"w": received}, 1.0)["w"] is own


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_counters_and_tensors_of_one_state_are_not_mixed(weight):
    own = {"w": torch.tensor([4.0]), "seen": torch.tensor(3), "queue": torch.tensor([5.0])}
    new = {"w": torch.tensor([8.0]), "seen": torch.tensor(7), "head": torch.tensor([6.0])}
    mixed = mix(own, new, weight)
    assert {name: value.tolist() for name, value in mixed.items()} == {
        "w": [8.0 - 4.0 * weight],
        "seen": 7,
        "queue": [5.0],
        "head": [6.0],
    }
    assert mixed["seen"].dtype == torch.int64


def test_reference_code_divergence_by_hand():
    client, received, memory = situation(drift=4.0, **{"lambda": 0.1})
    log = FedEMA(divergence="reference-code").receive(client, Broadcast(received), memory)
    assert log["mu"] == pytest.approx(0.4)
    before = {"a": torch.tensor([0.0, 0.0]), "b": torch.tensor([1.0])}
    after = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([2.0])}
    assert mean_change(before, after) == 3.0  # (5 + 1) / 2


def test_reference_code_scaler_is_kept_by_the_client_once(tmp_path):
    toy = Federation(tmp_path, {"name": "fedema", "divergence": "reference-code"}, objective="byol")
    toy.run(0)
    first = toy.memories.load(0, 1).values
    assert first["round"] == 1
    assert first["lambda"] == pytest.approx(0.7 / first["drift"])
    toy.run(0, round=2, memory_round=1)
    second = toy.memories.load(0, 2).values
    assert second["round"] == 2
    assert second["drift"] != first["drift"]
    assert second["lambda"] == first["lambda"]


def test_convolutions_are_found_by_type():
    from torch import nn

    from fedssl.models.model import Model, Part

    odd = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(2, 2))
    assert convolutions(Model(encoder=Part(odd), projector=Part(nn.Conv2d(1, 1, 1)))) == ["encoder.0.weight"]


def test_the_authors_code_leaves_shortcuts_out():
    """It looks for `conv` in names: the stem, and two convolutions for each of three blocks."""
    encoder = build_encoder(ModelConfig(encoder="resnet8", width=4), (8, 8), 3).module
    shortcuts = ["layer2.0.downsample.0.weight", "layer3.0.downsample.0.weight"]
    assert set(shortcuts) < set(dict(encoder.named_parameters()))
    blocks = [f"encoder.layer{stage}.0.conv{number}.weight" for stage in (1, 2, 3) for number in (1, 2)]
    assert convolutions(Model(encoder=Part(encoder))) == ["encoder.conv1.weight", *blocks]


@pytest.mark.parametrize(("threshold", "predictor"), [(13.1, 0.0), (13.0, 8.0)])
def test_fedu_replaces_the_predictor_only_if_the_encoders_are_close(threshold, predictor):
    client, received, memory = situation(own_round=1)  # FedU has no rule about the round before
    method = FedU(divergence="paper", threshold=threshold)
    log = method.receive(client, Broadcast(received), memory)
    state = client.model.state_dict()
    assert state["predictor.weight"].tolist() == [predictor]
    assert state["encoder.weight"].tolist() == [0.0, 0.0]
    assert state["target.encoder.weight"].tolist() == [7.0, 7.0]
    assert log["predictor_replaced"] == float(predictor == 0.0)


@pytest.mark.parametrize(("threshold", "projector"), [(13.1, 0.0), (13.0, 12.0)])
def test_fedu_uses_the_projector_without_a_predictor(threshold, projector):
    model = Model(encoder=Part(Vector(0.0, 0.0)), projector=Part(Vector(0.0)))
    received = snapshot(model)
    own = {**received, "encoder.weight": torch.tensor([3.0, 4.0]), "projector.weight": torch.tensor([12.0])}
    client = a_client(model, round=3)
    client.notes["round"] = 2
    FedU(divergence="paper", threshold=threshold).receive(client, Broadcast(received), own)
    assert client.model.state_dict()["projector.weight"].tolist() == [projector]
    assert client.model.state_dict()["encoder.weight"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("broadcast", "replaced"), [({}, 1.0), ({"threshold": 13.0}, 1.0), ({"threshold": 12.9}, 0.0)]
)
def test_fedu_with_a_quantile_compares_with_what_the_server_saw(broadcast, replaced):
    """The client is 13 away. Its predictor is replaced up to the quantile, and as long as there is none."""
    client, received, memory = situation()
    method = FedU(divergence="paper", quantile=0.5, threshold=1e9)
    log = method.receive(client, Broadcast(received, values=broadcast), memory)
    assert log == {"divergence_before": pytest.approx(13), "predictor_replaced": replaced}
    assert client.model.state_dict()["predictor.weight"].tolist() == [0.0 if replaced else 8.0]


def test_fedus_quantile_by_hand():
    """Of 1, 2 and 4 the median is 2, and the first quartile is 1.5."""
    model = byol_like()
    state = snapshot(model, FedU().shares(model))
    uploads = [upload_of(client, state) for client in range(4)]
    for upload, apart in zip(uploads, (4.0, 1.0, 2.0), strict=False):  # the last client is new
        upload.values["divergence_before"] = apart
    server = ServerState(state, values={"other": 1.0})
    assert FedU(quantile=0.5).broadcast(server, 0, 1).values == {}
    second = aggregate(FedU(quantile=0.5), model, server, uploads)
    assert second.values == {"other": 1.0, "threshold": 2.0}
    assert FedU(quantile=0.5).broadcast(second, 0, 2).values == {"threshold": 2.0}
    assert aggregate(FedU(quantile=0.25), model, server, uploads).values["threshold"] == 1.5
    # In a round without comparisons, the quantile does not change.
    third = aggregate(FedU(quantile=0.5), model, second, [upload_of(0, state)], round=2)
    assert third.values["threshold"] == 2.0
    assert aggregate(FedU(), model, server, uploads).values == {"other": 1.0}


def test_a_run_of_fedu_with_a_quantile_replaces_about_that_share(tmp_path):
    run = small_run(
        tmp_path / "run", objective="byol", rounds=4, **{"method.name": "fedu", "method.quantile": 0.4}
    )
    assert "predictor_replaced" not in run.metrics[0]
    assert run.metrics[1]["predictor_replaced"] == 1.0
    for line, before in zip(run.metrics[2:], run.metrics[1:], strict=False):
        quantile = np.quantile([client["divergence_before"] for client in before["clients"]], 0.4)
        expected = [float(client["divergence_before"] <= quantile) for client in line["clients"]]
        assert [client["predictor_replaced"] for client in line["clients"]] == expected
        assert line["predictor_replaced"] == sum(expected) / 5


def test_constant_mu_for_encoder_and_predictor_by_hand():
    client, received, memory = situation()
    ConstantMu(mu_encoder=0.5, mu_predictor=0.25).receive(client, Broadcast(received), memory)
    assert client.model.state_dict()["encoder.weight"].tolist() == [1.5, 2.0]
    assert client.model.state_dict()["predictor.weight"].tolist() == [2.0]
