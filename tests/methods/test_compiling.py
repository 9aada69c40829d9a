"""Compiled steps give the same training up to rounding, and hooks and copies of encoders still work."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.small import small_run
from torch import nn

import fedssl
from fedssl.errors import ConfigError
from fedssl.methods import compiling
from fedssl.methods.latent import record_outputs
from fedssl.models.model import Model, Part
from fedssl.tensorfile import load_tensors


def encoder_of(run: fedssl.Run) -> dict[str, torch.Tensor]:
    return load_tensors(run.path / "encoder.safetensors")[0]


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest relative distance of two tensors of the same name."""
    return max(
        float((one[name] - other[name]).norm() / (one[name].norm() + 1e-6))
        for name in one
        if one[name].is_floating_point()
    )


def test_a_compiled_run_is_the_plain_one_up_to_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch._inductor.config.compile_threads", 1)  # other tests want the cores
    settings: dict[str, Any] = {"objective": "byol", "method": "fedema", "rounds": 2}
    plain = small_run(tmp_path / "plain", **settings)
    compiled = small_run(tmp_path / "compiled", **settings, **{"train.compile": True})
    assert apart(encoder_of(plain), encoder_of(compiled)) < 1e-3
    losses = [[line["loss"] for line in run.metrics] for run in (plain, compiled)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.parametrize("method", ["featarc", "fedstyle", "apfl"])
def test_hooks_on_the_encoder_still_work(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a compiler that changes nothing, the bits are the same, so hooks see the same values."""
    plain = small_run(tmp_path / "plain", method=method)
    monkeypatch.setattr(
        compiling, "compile_function", lambda forward: torch.compile(forward, backend="eager")
    )
    compiled = small_run(tmp_path / "compiled", method=method, **{"train.compile": True})
    assert apart(encoder_of(plain), encoder_of(compiled)) == 0


def test_compiling_is_undone_afterwards() -> None:
    model = Model(encoder=Part(nn.Sequential(nn.Linear(3, 2))))
    with compiling.compile_encoders(model):
        assert "forward" in vars(model.part("encoder"))
    copied = copy.deepcopy(model)
    with torch.no_grad(), record_outputs(copied.part("encoder")) as seen:
        copied.part("encoder").get_parameter("0.weight").zero_()
        copied.part("encoder").get_parameter("0.bias").fill_(7.0)
        copied.part("encoder")(torch.ones(1, 3))
    assert seen[0].tolist() == [[7.0, 7.0]]


def test_a_gan_is_not_compiled(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.compile"):
        small_run(tmp_path / "gan", objective="gan", method="padpaf", **{"train.compile": True})
