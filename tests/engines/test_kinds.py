import pytest
import torch
from tests.small import small_run
from torch import nn

from fedssl.engines.kinds import mean_by_kind, norms_by_kind
from fedssl.engines.round_report import RoundReport
from fedssl.engines.tasks import Outcome
from fedssl.evaluation.loaded import load_run
from fedssl.models.model import Model, Part
from fedssl.state import Upload


def network():
    encoder = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.GroupNorm(1, 2))
    attention = nn.MultiheadAttention(2, 1)
    return Model(encoder=Part(encoder), head=Part(attention))


def test_kinds_are_found_by_module_type():
    assert network().kinds() == {
        "encoder.0.weight": "weights",
        "encoder.0.bias": "beta",
        "encoder.1.weight": "gamma",
        "encoder.1.bias": "beta",
        "encoder.2.weight": "gamma",
        "encoder.2.bias": "beta",
        "head.in_proj_weight": "weights",
        "head.in_proj_bias": "beta",
        "head.out_proj.weight": "weights",
        "head.out_proj.bias": "beta",
    }


def test_means_by_kind_by_hand():
    kinds = {"a": "weights", "b": "weights", "c": "gamma", "absent": "beta"}
    angles = {"a": 0.5, "b": 1.0, "c": -1.0, "unknown": 9.0}
    assert mean_by_kind(angles, kinds, "angle") == {"angle_weights": 0.75, "angle_gamma": -1.0}


def test_norms_by_kind_by_hand():
    """Layers of norm 5 and 1, so 3; in a second model 10 and 2. The mean of both models is 4.5."""
    kinds = {"a": "weights", "b": "weights", "c": "beta"}
    one = {"a": torch.tensor([[3.0, 4.0]]), "b": torch.tensor([[1.0]]), "c": torch.zeros(2)}
    two = {name: 2 * value for name, value in one.items()}
    assert norms_by_kind([one], kinds) == {"norm_weights": 3.0, "norm_beta": 0.0}
    assert norms_by_kind([one, two], kinds) == {"norm_weights": 4.5, "norm_beta": 0.0}
    assert norms_by_kind([], kinds) == norms_by_kind([{}], kinds) == {}


def test_shares_of_clients_in_a_line_of_metrics():
    report = RoundReport(1)
    numbers = [{"mu_capped": 1.0, "predictor_replaced": 0.0}, {"mu_capped": 0.0}, {}]
    report.outcomes = [
        Outcome(client, Upload(client, {}, 10 + 90 * client, 1.0, values))
        for client, values in enumerate(numbers)
    ]
    line = report.line()
    assert line["mu_capped"] == 0.5  # of those that have a μ, whatever their number of images
    assert line["predictor_replaced"] == 0.0


def test_a_run_logs_them(tmp_path):
    run = small_run(tmp_path / "run", rounds=2, **{"aggregation.name": "l-dawa"})
    for line in run.metrics:
        for kind in ("weights", "gamma", "beta"):
            own = [client[f"angle_{kind}"] for client in line["clients"]]
            assert line[f"angle_{kind}"] == pytest.approx(sum(own) / len(own))
    first, second = run.metrics
    # Shifts start at zero, where δ is 1 by definition; after that their direction is mostly noise.
    assert second["angle_beta"] < first["angle_beta"]
    loaded = load_run(run.directory, {})
    kinds = loaded.live.runner.model.kinds()
    norms = [float(value.norm()) for name, value in loaded.server.model.items() if kinds.get(name) == "gamma"]
    assert second["norm_gamma"] == pytest.approx(sum(norms) / len(norms), rel=1e-5)
