"""Recalibrated BatchNorm statistics, compared with PyTorch on all images, and where they are used."""

import copy
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from tests.small import SMALL, digest, small_run
from torch import nn

from fedssl.config import load
from fedssl.data.federation import federate
from fedssl.data.parts import Parts
from fedssl.data.views import plain
from fedssl.engines.live import LiveRun
from fedssl.engines.local import InProcess
from fedssl.engines.memory import MemoryStore
from fedssl.engines.recalibration import Recalibration, measure, some_views
from fedssl.engines.tasks import Task
from fedssl.errors import ConfigError
from fedssl.evaluation.loaded import load_run
from fedssl.state import Broadcast, snapshot

DEPTH = 7  # of ResNet-8: the stem, and two layers for each of three blocks


def live_run(tmp_path, **keys):
    """Three clients with 33 to 34 digits; both views are the unchanged images."""
    partition = {"scheme": "dirichlet-equal", "clients": 3, "beta": 0.1}
    config = load(SMALL, {"partition": partition, "views.recipe": "plain", **keys})
    return LiveRun(config, federate(config), MemoryStore(tmp_path / "memories", 1))


def scaled_model(run):
    """A model with scaled weights, whose statistics do not match."""
    model = {name: run.runner.initial[name].clone() for name in run.runner.boundary.travels}
    return {
        name: value * (0.5 if value.ndim > 1 else 1.0) if value.is_floating_point() else value
        for name, value in model.items()
    }


def by_pytorch(encoder, images):
    """Statistics of all images as one batch: cumulative averages, variances without Bessel's correction."""
    encoder = copy.deepcopy(encoder).train()
    counts = {}
    for path, module in encoder.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
            module.register_forward_pre_hook(
                lambda _, inputs, path=path: counts.update({path: inputs[0].numel() // inputs[0].shape[1]})
            )
    with torch.no_grad():
        encoder(images)
    found = {}
    for path, count in counts.items():
        module = encoder.get_submodule(path)
        found[f"encoder.{path}.running_mean"] = module.running_mean
        found[f"encoder.{path}.running_var"] = module.running_var * (count - 1) / count
    return found


def test_one_pass_per_layer_gives_the_statistics_of_all_images(tmp_path):
    run = live_run(tmp_path)
    images = run.federation.train
    used = torch.cat([torch.as_tensor(part) for part in run.federation.parts])
    recalibration = Recalibration(run.runner, InProcess(run.runner).run)
    model = scaled_model(run)
    run.runner.model.load_state_dict({**run.runner.initial, **model})
    together = plain(images.x[used], run.config.data.mean, run.config.data.std)
    expected = by_pytorch(run.runner.model.part("encoder"), together)
    found = recalibration.measured(model, DEPTH)
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-5)

    def error(passes):
        near = recalibration.measured(model, passes)
        return max(float((near[name] - value).norm() / value.norm()) for name, value in expected.items())

    stale = max(float((model[name] - value).norm() / value.norm()) for name, value in expected.items())
    assert error(3) < error(1) < 0.5 * stale


def test_one_pass_by_batch_equals_pytorch(tmp_path):
    run = live_run(tmp_path)
    run.runner.model.load_state_dict({**run.runner.initial, **scaled_model(run)})
    encoder = run.runner.model.part("encoder")
    before, modes = snapshot(encoder), [module.training for module in encoder.modules()]
    client = run.runner.client(Task(1, 0, Broadcast()))
    (views,) = some_views(client, 3)
    expected = by_pytorch(encoder, views)
    found = measure(encoder, [views], by_batch=True)
    for name, value in expected.items():
        torch.testing.assert_close(found[name.removeprefix("encoder.")], value, rtol=1e-4, atol=1e-6)
    assert all(torch.equal(value, before[name]) for name, value in snapshot(encoder).items())
    assert [module.training for module in encoder.modules()] == modes


def test_clients_send_means_and_variances_of_the_encoder_and_nothing_else(tmp_path):
    run = live_run(tmp_path)
    outcome = run.runner.run(Task(1, 2, Broadcast(scaled_model(run)), measure="by-statistics"))
    assert outcome.failure == ""
    assert all(
        name.startswith("encoder.") and name.endswith(("running_mean", "running_var"))
        for name in outcome.upload.state
    )
    assert outcome.upload.num_samples == len(run.federation.parts[2])
    assert (outcome.upload.loss, outcome.upload.values) == (0.0, {})


def test_client_side_statistics_are_the_same(tmp_path):
    shown, hidden = (
        live_run(tmp_path / str(side), **{"aggregation.client_side": side}) for side in (False, True)
    )
    model = scaled_model(shown)
    found = [Recalibration(run.runner, InProcess(run.runner).run).of(model) for run in (shown, hidden)]
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-4, atol=1e-6)


def test_a_client_that_fails_is_left_out_with_a_warning(tmp_path):
    run = live_run(tmp_path)
    first, second, *others = run.federation.parts
    run.runner.federation = replace(run.federation, parts=Parts.of([first, second[:0], *others]))
    with pytest.warns(UserWarning, match=r"without 1 clients \(client 1: has no images\)"):
        assert Recalibration(run.runner, InProcess(run.runner).run).of(scaled_model(run))


PROBED = {"probe": {"every": 0, "protocol": "linear"}, "rounds": 2}


def statistics(state):
    return {name: value for name, value in state.items() if name.endswith(("running_mean", "running_var"))}


@pytest.mark.parametrize("rule", ["l-dawa", "m-dawa", "fixed-norms"])
def test_encoders_with_scaled_weights_are_recalibrated(tmp_path, rule):
    run = small_run(tmp_path / "run", **PROBED, **{"aggregation.name": rule})
    loaded = load_run(run.directory, {})
    fresh = loaded.live.recalibration.of(loaded.server.model)
    exported = load_file(run.path / "encoder.safetensors")
    for name, value in statistics(exported).items():
        assert torch.equal(value, fresh[f"encoder.{name}"])
        assert not torch.equal(value, loaded.server.model[f"encoder.{name}"])
    entry = next(entry for entry in run.result["probes"] if entry["protocol"] == "linear")
    assert run.probe("linear")["accuracy"] == entry["accuracy"]
    stale = load_run(run.directory, {"probe.recalibrate": False})
    (encoder,) = stale.measure(snapshot)
    assert all(
        torch.equal(value, loaded.server.model[f"encoder.{name}"])
        for name, value in statistics(encoder).items()
    )


def test_other_encoders_are_recalibrated_on_request(tmp_path):
    plain_run = small_run(tmp_path / "plain", **PROBED)
    asked = small_run(tmp_path / "asked", **PROBED, **{"probe.recalibrate": True})
    server = load_run(plain_run.directory, {}).server.model
    for name, value in load_file(plain_run.path / "encoder.safetensors").items():
        assert torch.equal(value, server[f"encoder.{name}"])
    a, b = (load_file(run.path / "encoder.safetensors") for run in (plain_run, asked))
    assert all(torch.equal(a[name], b[name]) for name in a if name not in statistics(a))
    assert digest(plain_run) != digest(asked)


def test_a_personal_encoder_is_measured_on_its_owners_images(tmp_path):
    keys = {"method.name": "fedper", "aggregation.name": "l-dawa", "rounds": 1}
    run = small_run(tmp_path / "run", **keys)
    loaded = load_run(run.directory, {})
    encoder = loaded.models.personal(loaded.server, loaded.memory_rounds, 3)
    measured = loaded.live.runner.measured(3, encoder)
    assert all(torch.equal(value, measured[name]) for name, value in statistics(encoder.state_dict()).items())


def test_features_before_pooling(tmp_path):
    """ResNet-8 of width 4 has maps of 16 × 2 × 2 for digits, and the mean over places is what it pools."""
    run = small_run(tmp_path / "run", rounds=1)
    loaded = load_run(run.directory, {"probe.features": "map"})
    prober = loaded.prober()
    maps = prober.features(loaded.models.untrained(), prober.test)
    pooled = prober.features(loaded.models.untrained(), prober.test, pooled=True)
    assert (maps.shape[1], pooled.shape[1]) == (64, 16)
    torch.testing.assert_close(maps.view(-1, 16, 4).mean(2), pooled)
    assert prober.run_all(loaded.models.untrained(), ["linear"])["linear"].accuracy > 0.1
    with pytest.raises(ConfigError, match="Linear has no feature map before pooling"):
        prober.features(nn.Linear(2, 2), prober.test)
