"""MAE under federation, with the transformer of Dec-SSL: patches of 2, 192 wide, 12 + 4 blocks, AdamW."""

import pytest
import torch
from tests.small import small_run

from fedssl.evaluation.loaded import load_run
from fedssl.methods.boundary import Boundary
from fedssl.methods.fedbn import FedBN

MAE = {
    "objective": {"name": "mae", "mask_ratio": 0.75},
    "model": {"encoder": "vit_tiny", "patch": 2},
    "data": {"name": "digits", "limit": 32},
    "partition": {"scheme": "iid", "clients": 2},
    "train": {"epochs": 1, "batch_size": 8, "optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.05},
    "rounds": 2,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return small_run(tmp_path_factory.mktemp("runs") / "mae", **MAE)


def test_it_is_the_papers_network(run):
    model = load_run(run.directory, {}).models.runner.model
    encoder, decoder = model.part("encoder"), model.part("decoder")
    assert (len(encoder.blocks), encoder.embed_dim, encoder.patch_embed.patch_size) == (12, 192, (2, 2))
    assert (len(decoder.blocks), decoder.embed.out_features) == (4, 192)


def test_encoder_and_decoder_are_shared_but_not_the_position_table(run):
    finished = load_run(run.directory, {})
    assert {name.split(".")[0] for name in finished.server.model} == {"encoder", "decoder"}
    assert run.metrics[0]["failed"] == run.metrics[1]["failed"] == []


def test_it_learns(run):
    assert run.metrics[1]["loss"] < run.metrics[0]["loss"]
    moved = load_run(run.directory, {})
    weight = "encoder.blocks.11.mlp.fc2.weight"
    assert not torch.equal(moved.server.model[weight], moved.models.runner.initial[weight])


def test_layer_norms_can_stay_with_the_client(run):
    model = load_run(run.directory, {}).models.runner.model
    uploaded = set(Boundary.of(FedBN(), model).travels)
    assert not uploaded & {"encoder.blocks.0.norm1.weight", "encoder.norm.bias", "decoder.norm.weight"}
    assert "encoder.blocks.0.attn.qkv.weight" in uploaded
