"""The shape of the heads, and which of their tensors count as BatchNorm."""

from __future__ import annotations

import torch
from torch import nn

from fedssl.models.heads import build_predictor, build_projector, mlp
from fedssl.models.model import Model, Part
from fedssl.models.options import ModelConfig

PAPER = ModelConfig(projector_hidden=4096, projector_out=2048, predictor_hidden=4096)


def shapes(module: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(layer.weight.shape) for layer in module if hasattr(layer, "weight")]


def test_paper_sizes() -> None:
    """FedEMA: 4096-BN-ReLU-2048, the predictor the same."""
    with torch.device("meta"):
        assert shapes(build_projector(512, PAPER)) == [(4096, 512), (4096,), (2048, 4096)]
        assert shapes(build_predictor(PAPER)) == [(4096, 2048), (4096,), (2048, 4096)]


def test_one_linear_layer() -> None:
    """L-DAWA's code: 512 features, 128 outputs."""
    head = build_projector(512, ModelConfig(projector="linear", projector_out=128))
    assert isinstance(head, nn.Linear)
    assert head.weight.shape == (128, 512)
    assert head.bias is not None


def test_the_function_by_hand() -> None:
    head = mlp(2, 3, 1)
    x = torch.randn(5, 2)
    hidden = x @ head[0].weight.T
    hidden = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(head(x), hidden.relu() @ head[3].weight.T + head[3].bias)


def test_a_projector_without_batchnorm_by_hand() -> None:
    """Features (1, −2): hidden ReLU(3, −1 − 4 + 5, …) = (3, 0), output 2·3 + 1 = 7."""
    head = build_projector(2, ModelConfig(projector_hidden=2, projector_out=1, projector_norm="none"))
    with torch.no_grad():
        head[0].weight.copy_(torch.tensor([[1.0, -1.0], [-1.0, 2.0]]))
        head[0].bias.copy_(torch.tensor([0.0, 5.0]))
        head[2].weight.copy_(torch.tensor([[2.0, 9.0]]))
        head[2].bias.copy_(torch.tensor([1.0]))
    assert head(torch.tensor([[1.0, -2.0]])).tolist() == [[7.0]]
    assert Model(projector=Part(head)).normalization_names() == []


def test_batchnorm_is_found_by_type() -> None:
    model = Model(projector=Part(mlp(2, 3, 1)))
    statistics = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    assert model.normalization_names() == [f"projector.1.{name}" for name in statistics]
