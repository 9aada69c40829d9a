"""Private normalization layers: found by type, with any method, and used in each client's evaluation."""

import pytest
import torch
from tests.small import digest, small_run
from torch import nn

from fedssl.config import load
from fedssl.errors import ConfigError
from fedssl.evaluation.loaded import load_run
from fedssl.methods import METHODS
from fedssl.models import ENCODERS
from fedssl.models.encoders import build_encoder
from fedssl.models.model import Model, Part
from fedssl.models.options import ModelConfig
from fedssl.objectives.byol import BYOL
from fedssl.state import mix

TIMM = (  # BatchNorm with and without activation, GroupNorm, LayerNorm 1-D and 2-D, RMS, EvoNorm, FRN, GRN
    "resnet18",
    "efficientnet_b0",
    "resnetv2_50",
    "vit_tiny_patch16_224",
    "convnext_atto",
    "convnextv2_atto",
    "vit_so150m2_patch16_reg1_gap_256",
    "resnetv2_50d_evos",
    "resnetv2_50d_frn",
)


def by_class_name(model):
    """An independent way to find them: by the name of a leaf's class, not of the module."""
    found = []
    for path, module in model.named_modules():
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        if "norm" in type(module).__name__.lower() and own:
            found += [f"{path}.{name}" for name in module.state_dict() if "." not in name]
    return set(found)


@pytest.mark.parametrize("name", [*ENCODERS, *(f"timm:{name}" for name in TIMM)])
def test_every_normalization_layer_of_every_encoder_is_found_by_type(name):
    with torch.device("meta"):
        if name.startswith("timm:"):
            import timm

            encoder = timm.create_model(name.removeprefix("timm:"), num_classes=0)
        else:
            encoder = build_encoder(ModelConfig(encoder=name, width=4), (32, 32), 3).module
    model = Model(encoder=Part(encoder))
    found = set(model.normalization_names())
    assert found
    assert found == by_class_name(model)


def test_branches_that_downsample_and_heads_are_among_them():
    encoder = build_encoder(ModelConfig(encoder="resnet18", width=4), (32, 32), 3)
    model = BYOL().build(encoder.module, encoder.features, ModelConfig())
    names = set(model.normalization_names())
    for path in ("encoder.layer2.0.downsample.1", "projector.1", "predictor.1", "encoder.bn1"):
        for tensor in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            assert f"{path}.{tensor}" in names
    assert "encoder.layer2.0.downsample.0.weight" not in names


def test_normalization_layers_are_not_found_by_name():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.shortcut = nn.BatchNorm2d(2)
            self.bn = nn.Conv2d(2, 2, 1)

    model = Model(encoder=Part(Odd()))
    assert {name.split(".")[1] for name in model.normalization_names()} == {"shortcut"}


TINY = {
    "data": {"name": "digits", "limit": 40},
    "partition": {"scheme": "iid", "clients": 2},
    "rounds": 2,
    "objective": "byol",
}


@pytest.mark.parametrize(
    "method", ["fedavg", "fedema", "fedprox", "fedper", "ditto", "featarc", "constant-mu"]
)
def test_private_normalization_layers_stay_on_the_client_with_any_method(tmp_path, method):
    run = small_run(tmp_path / "a", **TINY, method={"name": method, "private_norm": True})
    assert [line["failed"] for line in run.metrics] == [[], []]
    finished = load_run(run.directory, {})
    runner = finished.models.runner
    norm = [
        name for name in runner.config.method.shares(runner.model) if name in runner.boundary.private_norm
    ]
    assert norm
    assert all(not set(model) & set(norm) for model in finished.server.states)
    kept = [runner.memories.load(client, 2).state for client in (0, 1)]
    for name in norm:
        assert not name.endswith(("running_mean", "running_var")) or not torch.equal(
            kept[0][name], kept[1][name]
        )
    # A client starts its next round with exactly what it kept.
    for client in (0, 1):
        finished.models.load_client(finished.server, finished.memory_rounds, client)
        state = runner.model.state_dict()
        assert all(torch.equal(state[name], kept[client][name]) for name in norm)
    assert "encoder.conv1.weight" in finished.server.states[0]


def test_a_moving_average_keeps_private_layers():
    own = torch.tensor([0.1, 0.7])
    assert mix({"w": own}, {"w": own}, 0.3)["w"] is own


@pytest.fixture(scope="module")
def fedbn(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "fedbn"
    return small_run(out, **TINY, method="fedbn", **{"probe.protocol": "knn"})


def test_fedbn_is_fedavg_with_private_layers(tmp_path, fedbn):
    other = small_run(tmp_path / "a", **TINY, method={"name": "fedavg", "private_norm": True})
    assert digest(other) == digest(fedbn)


def test_the_result_is_the_mean_over_clients_each_with_its_own_layers(fedbn):
    (knn,) = fedbn.result["probes"]
    assert knn["model"] == "personal, mean of 2 clients, each with its own normalization layers"
    finished = load_run(fedbn.directory, {})
    prober = finished.prober(finished.federation.train, finished.federation.test)
    accuracies = []
    for client in (0, 1):
        encoder = finished.models.personal(finished.server, finished.memory_rounds, client)
        own = finished.models.runner.memories.load(client, 2).state
        assert torch.equal(encoder.bn1.running_var, own["encoder.bn1.running_var"])
        assert torch.equal(encoder.conv1.weight, finished.server.model["encoder.conv1.weight"])
        accuracies.append(prober.run_all(encoder, ["knn"])["knn"].accuracy)
    assert knn["accuracy"] == pytest.approx(sum(accuracies) / 2)


def test_a_client_that_never_took_part_has_its_layers_at_their_first_values(fedbn):
    finished = load_run(fedbn.directory, {})
    encoder = finished.models.personal(finished.server, {}, 1)
    assert encoder.bn1.running_mean.tolist() == [0.0] * 4


def test_every_method_has_private_norm_and_fedbn_requires_it():
    for name in METHODS:
        assert "private_norm" in METHODS.get(name).model_fields
    with pytest.raises(ConfigError, match=r"method\.private_norm=False"):
        load({"method": {"name": "fedbn", "private_norm": False}})
