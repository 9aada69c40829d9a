"""Mixed precision on a processor: the same training up to bfloat16's rounding, and weights stay float32."""

import math
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.small import GENERATIVE, QUEUE, digest, small_run

import fedssl
from fedssl.engines.device import multiplies_bf16
from fedssl.errors import ConfigError
from fedssl.objectives import OBJECTIVES
from fedssl.tensorfile import load_tensors

ENCODERS = [name for name in OBJECTIVES if name not in GENERATIVE]
CPUINFO = Path("/proc/cpuinfo")
WANTS: dict[str, dict[str, Any]] = {
    **QUEUE,
    "mae": {"model.encoder": "vit_tiny"},
    "simmim": {"model.encoder": "vit_tiny"},
}


@pytest.fixture(autouse=True)
def any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the instructions it is slow, but gives the same results."""
    monkeypatch.setattr("fedssl.engines.runner.multiplies_bf16", lambda: True)


def trained(out: Path, precision: str, **settings: Any) -> fedssl.Run:
    return small_run(out / precision, rounds=1, **settings, **{"train.precision": precision})


@pytest.mark.parametrize("objective", ENCODERS)
def test_every_objective_trains_as_with_full_precision(objective: str, tmp_path: Path) -> None:
    runs = [
        trained(tmp_path, precision, objective=objective, **WANTS.get(objective, {}))
        for precision in ("fp32", "bf16")
    ]
    (full,), (narrow,) = ([line["loss"] for line in run.metrics] for run in runs)
    assert full != narrow  # it is not ignored
    assert narrow == pytest.approx(full, rel=0.02)
    one, other = (load_tensors(run.path / "encoder.safetensors")[0] for run in runs)
    assert {name: value.dtype for name, value in one.items()} == {
        name: value.dtype for name, value in other.items()
    }
    assert length(one[name] - other[name] for name in one) < 0.05 * length(one.values())


def length(tensors: Iterable[torch.Tensor]) -> float:
    return math.hypot(*(float(tensor.double().norm()) for tensor in tensors))


@pytest.mark.parametrize("method", ["fedstyle", "featarc", "apfl", "fedema"])
def test_methods_with_additional_passes_train_too(method: str, tmp_path: Path) -> None:
    objective = "byol" if method == "fedema" else "simclr"
    full, narrow = (
        trained(tmp_path, precision, method=method, objective=objective).metrics[0]["loss"]
        for precision in ("fp32", "bf16")
    )
    assert narrow == pytest.approx(full, rel=0.02)
    assert narrow != full


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.skipif(not multiplies_bf16(), reason="workers look at the processor themselves")
def test_two_workers_give_the_same_bits(tmp_path: Path) -> None:
    settings = {"train.precision": "bf16", "rounds": 2}
    one, two = (
        small_run(tmp_path / str(workers), **settings, **{"engine.workers": workers}) for workers in (1, 2)
    )
    assert digest(one) == digest(two)


@pytest.mark.skipif(platform.machine() != "x86_64" or not CPUINFO.exists(), reason="Linux on x86 says it")
def test_bfloat16_support_matches_the_system() -> None:
    flags = set(CPUINFO.read_text().split())
    assert multiplies_bf16() == bool(flags & {"avx512_bf16", "amx_bf16"})


def test_slow_bfloat16_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedssl.engines.runner.multiplies_bf16", lambda: False)
    with pytest.raises(
        ConfigError, match=r"train\.precision=bf16: this processor has no instructions for bfloat16"
    ):
        trained(tmp_path, "bf16")
    assert not list(tmp_path.iterdir())
