"""Clients that scale their own layers and a server that only sums give the same run."""

import pytest
import torch
from safetensors.torch import load_file
from tests.small import small_run

from fedssl.errors import ConfigError


@pytest.mark.parametrize("rule", ["l-dawa", "l-dawa-fedavg", "m-dawa", "fedavg", "euc"])
def test_the_same_run_with_and_without(rule, tmp_path):
    options = {"partition": {"scheme": "dirichlet", "alpha": 0.5}, "aggregation.name": rule}
    server = small_run(tmp_path / "server", **options)
    client = small_run(tmp_path / "client", **options, **{"aggregation.client_side": True})
    a, b = (load_file(run.path / "encoder.safetensors") for run in (server, client))
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=1e-5)
    (line,) = client.metrics[:1]
    assert "angle" not in line["clients"][0]  # the server has not seen it
    assert not any(key.startswith("mass/") for key in line["clients"][0])
    assert "angle" in server.metrics[0]["clients"][0]


@pytest.mark.usefixtures("warm_workers")
def test_workers_scale_too(tmp_path):
    options = {"aggregation.name": "l-dawa", "aggregation.client_side": True, "rounds": 2}
    one = small_run(tmp_path / "one", **options)
    two = small_run(tmp_path / "two", **options, **{"engine.workers": 2})
    assert (one.path / "encoder.safetensors").read_bytes() == (two.path / "encoder.safetensors").read_bytes()


def test_the_autoscaler_is_refused_with_client_side_rules(tmp_path):
    with pytest.raises(ConfigError, match=r"autoscaler needs their distances; set method\.scaler"):
        small_run(tmp_path / "run", objective="byol", method="fedema", **{"aggregation.client_side": True})
