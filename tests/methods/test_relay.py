"""Relay: routes, the models passed along them, and the same bits on every engine and after every stop."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.onestep import TOY, Federation
from tests.small import digest, small_run

from fedssl.aggregation import build
from fedssl.engines.relay import Relay, stages
from fedssl.errors import ConfigError, RunError
from fedssl.methods.relay import Relay as RelayMethod
from fedssl.state import ServerState, Upload
from fedssl.threads import with_threads

KEYS = {"method": {"name": "relay"}, "rounds": 2}


@pytest.mark.parametrize(("visits", "lengths"), [(0, [5]), (5, [5]), (3, [3, 2]), (2, [2, 2, 1]), (9, [5])])
def test_routes_have_every_client_once_and_differ_between_rounds(visits, lengths):
    method, clients = RelayMethod(visits=visits), [2, 3, 5, 7, 11]
    drawn = [method.routes(clients, number, seed=0) for number in range(1, 20)]
    for routes in drawn:
        assert [len(route) for route in routes] == lengths
        assert sorted(itertools.chain(*routes)) == clients
    assert len({str(routes) for routes in drawn}) > 10
    assert method.routes(clients, 3, seed=0) == drawn[2] != method.routes(clients, 3, seed=1)


def test_every_client_is_as_likely_to_be_last():
    last = [RelayMethod().routes(range(5), number, seed=0)[0][-1] for number in range(2000)]
    assert all(
        abs(last.count(client) - 400) < 90 for client in range(5)
    )  # 400 ± 5 standard deviations (17.9)


def test_stages_by_hand():
    assert list(stages([[4, 1, 2], [3, 0]])) == [[4, 3], [1, 0], [2]]


def upload(client: int, value: float, images: int) -> Upload:
    return Upload(client, {"w": torch.tensor([float(value)])}, images)


def value_for(relay: Relay, client: int) -> float:
    return float(relay.seen_by(client).model["w"])


def test_models_are_passed_from_client_to_client_by_hand():
    """Routes 4 → 1 and 3 → 0 → 2; client 0 fails, so client 2 continues from client 3's model."""
    relay = Relay(ServerState({"w": torch.tensor([10.0])}), [[4, 1], [3, 0, 2]])
    assert value_for(relay, 4) == value_for(relay, 3) == 10
    assert relay.finish(4, upload(4, 11, images=5)) is None
    assert relay.finish(3, upload(3, 20, images=7)) is None
    assert (value_for(relay, 1), value_for(relay, 0)) == (11, 20)
    first = relay.finish(1, upload(1, 12, images=2))
    assert relay.finish(0, None) is None
    assert value_for(relay, 2) == 20
    second = relay.finish(2, upload(2, 21, images=1))
    assert first is not None
    assert second is not None
    assert [(each.client, float(each.state["w"]), each.num_samples) for each in (first, second)] == [
        (1, 12, 7),
        (2, 21, 8),
    ]
    mean = build("fedavg")({"w": torch.tensor([10.0])}, [first, second])
    assert mean["w"].item() == pytest.approx((7 * 12 + 8 * 21) / 15)


def test_a_route_whose_last_client_fails_counts_without_it():
    relay = Relay(ServerState({"w": torch.tensor([10.0])}), [[0, 1]])
    relay.finish(0, upload(0, 11, images=5))
    arrived = relay.finish(1, None)
    assert arrived is not None
    assert (arrived.client, float(arrived.state["w"]), arrived.num_samples) == (0, 11, 5)
    nobody = Relay(ServerState({"w": torch.tensor([10.0])}), [[0, 1]])
    assert nobody.finish(0, None) is nobody.finish(1, None) is None


def test_a_round_is_what_training_one_client_after_another_gives(tmp_path):
    """A naive second implementation: clients trained by hand, in the order of the routes."""
    rest = {
        **TOY,
        "data.limit": 48,
        "partition": {"scheme": "iid", "clients": 3},
        "rounds": 2,
    }
    run = small_run(tmp_path / "run", method="relay", **rest)
    toy = Federation(tmp_path / "toy", {"name": "relay"}, **rest)
    state = toy.first
    for number in (1, 2):
        (route,) = toy.config.method.routes(range(3), number, toy.config.seed)
        for client in route:
            with with_threads(1):
                state = toy.run(client, state, number)
    for name, value in run.encoder.state_dict().items():
        assert torch.equal(value, state[f"encoder.{name}"]), name


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("visits", [0, 2])
@pytest.mark.parametrize("objective", ["simclr", "byol"])
def test_the_same_bits_with_workers_and_after_a_stop(tmp_path, visits, objective):
    keys = {
        "objective": objective,
        "method": {"name": "relay", "visits": visits},
        "participation.failure_rate": 0.3,
    }
    one = small_run(tmp_path / "one", **keys)
    assert digest(one) == digest(small_run(tmp_path / "two", **keys, **{"engine.workers": 2}))
    assert sum(len(line["failed"]) for line in one.metrics)
    assert digest(one) != digest(small_run(tmp_path / "fedavg", **{**keys, "method": "fedavg"}))


def test_one_visit_is_fedavg(tmp_path):
    relay = small_run(tmp_path / "relay", method={"name": "relay", "visits": 1})
    assert digest(relay) == digest(small_run(tmp_path / "fedavg"))


def test_bytes_views_and_clients_are_those_of_fedavg(tmp_path):
    relay, plain = small_run(tmp_path / "relay", **KEYS), small_run(tmp_path / "plain", rounds=2)
    for ours, theirs in zip(relay.metrics, plain.metrics, strict=True):
        assert {key: ours[key] for key in ("bytes_up", "bytes_down", "views")} == {
            key: theirs[key] for key in ("bytes_up", "bytes_down", "views")
        }
        assert sorted(each["client"] for each in ours["clients"]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"aggregation.client_side": True}, "passes them from client to client"),
        ({"participation": {"per_round": 3, "overshoot": 0.5}}, "wait for each other"),
        ({"engine.name": "gossip"}, "needs a server"),
        ({"privacy.secure": True}, "needs individual uploads"),
    ],
)
def test_incompatible_settings_are_refused(tmp_path, keys, why):
    with pytest.raises(ConfigError, match=why):
        small_run(tmp_path / "run", **KEYS, **keys)


def test_routes_that_leave_a_client_out_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(RelayMethod, "routes", lambda self, clients, round, seed: [list(clients)[1:]])
    with pytest.raises(RunError, match="every client of a round once"):
        small_run(tmp_path / "run", **KEYS)
