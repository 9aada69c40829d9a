"""`client.received` is the model that the server sent, whatever the method does with it."""

import math

import pytest
import torch
from tests.methods.readme import write_readme_method
from tests.onestep import Federation
from tests.small import small_run


@pytest.fixture
def mixing(tmp_path):
    """Two clients of the README's method, which mixes the global model with the client's own."""
    return Federation(tmp_path / "memories", {"name": write_readme_method(tmp_path), "keep": 0.5})


def moved(state):
    """Another global model, far from the first."""
    return {name: value + 1.0 if value.is_floating_point() else value + 5 for name, value in state.items()}


def test_divergence_is_from_what_the_server_sent(mixing):
    first = mixing.run(0)
    sent = moved(first)
    outcome = mixing.runner.run(mixing.task(0, sent, round=2, memory_round=1))
    upload = outcome.upload
    names = [name for name, _ in mixing.runner.model.named_parameters()]
    expected = math.sqrt(sum(float((upload.state[name] - sent[name]).square().sum()) for name in names))
    assert upload.values["divergence"] == pytest.approx(expected, rel=1e-5)


def test_counters_come_from_the_server(mixing):
    first = mixing.run(0)
    counter = "encoder.bn1.num_batches_tracked"
    later = mixing.run(0, moved(first), round=2, memory_round=1)
    assert later[counter].dtype == torch.int64
    assert later[counter] == first[counter] + 5 + 1  # one step


def test_a_mixing_method_with_a_rule_on_clients(tmp_path):
    name = write_readme_method(tmp_path)
    options = {"method": {"name": name, "keep": 0.3}, "rounds": 2, "aggregation.name": "l-dawa"}
    server = small_run(tmp_path / "server", **options)
    client = small_run(tmp_path / "client", **options, **{"aggregation.client_side": True})
    assert [line["failed"] for line in client.metrics] == [[], []]
    for a, b in zip(server.metrics, client.metrics, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
        assert a["divergence"] == pytest.approx(b["divergence"], rel=1e-3)
