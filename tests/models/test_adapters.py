"""LoRA: the tensors that are trained and sent, the merged encoder, and the mean of factors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.small import SMALL
from torch import nn

import fedssl
from fedssl.aggregation.fedavg import FedAvg
from fedssl.aggregation.products import on_products
from fedssl.config import load
from fedssl.engines.network import Network, build_network
from fedssl.engines.tools import server_tools
from fedssl.errors import ConfigError
from fedssl.methods.boundary import Boundary
from fedssl.models.adapters import adaptable, adapted, add_adapters, factor_names, merged_state
from fedssl.models.describe import rebuild
from fedssl.models.encoders import build_encoder
from fedssl.models.model import is_normalization
from fedssl.models.options import ModelConfig
from fedssl.state import Upload
from fedssl.use.trained import load_trained


def network(encoder: str, **train: object) -> Network:
    model = {"encoder": encoder, "patch": 8, "width": 64}
    return build_network(load({"objective": "byol", "model": model, "train": train}), (16, 16), 3, 0)


def shared(found: Network) -> dict[str, int]:
    """Number of shared values by tensor name."""
    names = Boundary.of(load({}).method, found.model).travels
    return {name: found.initial[name].numel() for name in names}


@pytest.mark.parametrize("mean", ["freeze-a", "product"])
@pytest.mark.parametrize("encoder", ["vit_tiny", "resnet18"])
def test_only_adapters_are_shared(encoder: str, mean: str) -> None:
    whole, small = shared(network(encoder)), network(encoder, lora=2, lora_mean=mean)
    few = shared(small)
    assert sum(few.values()) < 0.05 * sum(whole.values())
    kinds = ("lora_B",) if mean == "freeze-a" else ("lora_A", "lora_B")
    assert {name.split(".")[-3] for name in few if name.startswith("encoder.")} == set(kinds)
    trained = {name for name, value in small.model.named_parameters() if value.requires_grad}
    assert {name for name in trained if name.startswith("encoder.")} == {
        name for name in few if name.startswith("encoder.")
    }


@pytest.mark.parametrize("encoder", ["vit_tiny", "resnet8"])
def test_a_merged_encoder_computes_the_same(encoder: str) -> None:
    torch.manual_seed(0)
    config = ModelConfig(encoder=encoder, patch=8, width=4)
    built = build_encoder(config, (16, 16), 3)
    plain = {name: value.clone() for name, value in built.module.state_dict().items()}
    add_adapters(built.module, 2, 1.5, train_a=True)
    x = torch.randn(3, 3, 16, 16)
    untouched = rebuild(built.description).eval()
    untouched.load_state_dict(plain)
    assert torch.allclose(built.module.eval()(x), untouched(x), atol=1e-6)
    for _, layer in adapted(built.module):
        nn.init.normal_(layer.lora_B["default"].weight, std=0.1)
    merged = merged_state(built.module)
    assert merged.keys() == plain.keys()
    fresh = rebuild(built.description).eval()
    fresh.load_state_dict(merged)
    assert torch.allclose(built.module(x), fresh(x), atol=1e-4)
    assert not torch.allclose(untouched(x), fresh(x), atol=1e-2)


def test_the_first_and_frozen_layers_have_no_adapters() -> None:
    module = build_encoder(ModelConfig(width=4), (8, 8), 3).module
    names = adaptable(module)
    assert all(name.startswith("layer") for name in names)
    for name, value in module.named_parameters():
        value.requires_grad_(not name.startswith("layer1"))
    assert adaptable(module) == [name for name in names if not name.startswith("layer1")]


def test_statistics_do_not_move() -> None:
    found = network("resnet8", lora=2)
    found.model.train()
    found.model.part("encoder")(torch.randn(4, 3, 16, 16))
    norms = [module for module in found.model.part("encoder").modules() if is_normalization(module)]
    assert norms
    assert all(torch.equal(norm.running_mean, torch.zeros_like(norm.running_mean)) for norm in norms)


def factors(seed: int, rank: int = 2) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    shapes = {"a": (rank, 5), "b": (4, rank), "ca": (rank, 3, 3, 3), "cb": (6, rank, 1, 1), "rest": (7,)}
    return {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}


def product(state: dict[str, torch.Tensor], a: str, b: str) -> np.ndarray:
    return state[b].flatten(1).numpy().astype(float) @ state[a].flatten(1).numpy().astype(float)


PAIRS = (("a", "b"), ("ca", "cb"))


def test_the_mean_product_is_approximated_best() -> None:
    uploads = [Upload(0, factors(1), 10), Upload(1, factors(2), 30)]
    previous = factors(0)
    found = on_products(FedAvg(), PAIRS)(previous, uploads)
    apart = FedAvg()(previous, uploads)
    for a, b in PAIRS:
        wanted = 0.25 * product(uploads[0].state, a, b) + 0.75 * product(uploads[1].state, a, b)
        left, values, right = np.linalg.svd(wanted, full_matrices=False)
        best = (left[:, :2] * values[:2]) @ right[:2]
        assert np.allclose(product(found, a, b), best, atol=1e-5)
        error = np.linalg.norm(product(found, a, b) - wanted)
        assert np.isclose(error, np.linalg.norm(values[2:]), atol=1e-5)
        assert error < np.linalg.norm(product(apart, a, b) - wanted)
    assert torch.allclose(found["rest"], 0.25 * uploads[0].state["rest"] + 0.75 * uploads[1].state["rest"])
    assert {name: value.shape for name, value in found.items()} == {
        name: value.shape for name, value in previous.items()
    }


def test_with_equal_a_both_means_are_exact() -> None:
    same = factors(1)
    uploads = [Upload(0, same, 1), Upload(1, {**factors(2), "a": same["a"], "ca": same["ca"]}, 1)]
    by_product, by_factor = on_products(FedAvg(), PAIRS)(same, uploads), FedAvg()(same, uploads)
    for a, b in PAIRS:
        wanted = sum(product(upload.state, a, b) for upload in uploads) / 2
        assert np.allclose(product(by_product, a, b), wanted, atol=1e-5)
        assert np.allclose(product(by_factor, a, b), wanted, atol=1e-5)


def test_zero_directions_can_still_be_learned() -> None:
    previous = factors(0)
    upload = {**previous, "b": torch.zeros(4, 2)}
    found = on_products(FedAvg(), PAIRS)(previous, [Upload(0, upload, 1)])
    assert torch.equal(found["b"], torch.zeros(4, 2))
    assert torch.allclose(found["a"].norm(), previous["a"].norm())


@pytest.mark.parametrize("mean", ["freeze-a", "product"])
def test_adapters_train_and_are_exported_merged(mean: str, tmp_path: Path) -> None:
    model = SMALL["model"]
    first = fedssl.run(SMALL, out=tmp_path / "first", quiet=True, rounds=1)
    kept = {**SMALL, "model": {**model, "init": str(first.path)}, "rounds": 3}
    run = fedssl.run(
        kept, out=tmp_path / mean, quiet=True, **{"train.lora": 2, "train.lora_mean": mean, "train.lr": 0.2}
    )
    losses = [line["loss"] for line in run.metrics]
    assert len(set(losses)) == 3
    assert run.metrics[0]["bytes_up"] < first.metrics[0]["bytes_up"]
    start, end = (load_file(path / "encoder.safetensors") for path in (first.path, run.path))
    assert start.keys() == end.keys()
    assert not torch.equal(start["layer2.0.conv1.weight"], end["layer2.0.conv1.weight"])
    moved = end["layer2.0.conv1.weight"] - start["layer2.0.conv1.weight"]
    assert torch.linalg.matrix_rank(moved.flatten(1), rtol=1e-3) <= 2
    stem = next(name for name in start if not name.startswith("layer"))
    assert torch.equal(start[stem], end[stem])
    assert load_trained(run.path, "cpu")(np.zeros((1, 8, 8, 1), dtype=np.uint8)).isfinite().all()


@pytest.mark.parametrize(
    "keys",
    [
        {"engine": "gossip"},
        {"server": {"optimizer": "adam"}},
        {"aggregation": {"name": "l-dawa", "client_side": True}},
        {"privacy": {"secure": True}},
    ],
)
def test_products_need_single_uploads(keys: dict[str, object]) -> None:
    config = load({**keys, "train": {"lora": 2, "lora_mean": "product"}})
    with pytest.raises(ConfigError, match=r"use train\.lora_mean=freeze-a"):
        server_tools(config, build_network(config, (8, 8), 1, 0).model)


def test_names_of_factors_are_those_of_the_state() -> None:
    found = network("resnet8", lora=2)
    names = set(found.initial)
    pairs = factor_names(found.model)
    assert pairs
    assert all(a in names and b in names for a, b in pairs)
