"""One process, worker processes and Flower give the same bits, whatever the method sends and keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from tests.engines.flower.grid import FakeGrid, FakeNode, run_with
from tests.generative.small import KINDS
from tests.small import QUEUE, SMALL, digest

import fedssl
from fedssl.config import load
from fedssl.engines.flower import nodes
from fedssl.tensorfile import load_tensors

GAN = {**KINDS["gan"], "shift": {"name": "none"}, "partition": SMALL["partition"]}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fedavg": (SMALL, {}),
    "a queue": (SMALL, {"objective": "moco-v2", **QUEUE["moco-v2"]}),
    "fedema": (SMALL, {"objective": "byol", "method": "fedema"}),
    "l-dawa": (SMALL, {"aggregation": "l-dawa"}),
    "standalone": (SMALL, {"method": "standalone"}),
    "fedper": (SMALL, {"objective": "byol", "method": "fedper"}),
    "fedstyle": (SMALL, {"method": {"name": "fedstyle", "generator_hidden": 16}}),
    "featarc": (SMALL, {"method": {"name": "featarc", "clusters": 2}}),
    "padpaf": (GAN, {"method": "padpaf"}),
}


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("case", CASES)
def test_engines_agree(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "GRID_RUNS", 0.01)
    base, keys = CASES[case]
    one = fedssl.run(base, out=tmp_path / "one", quiet=True, **keys)
    two = fedssl.run(base, out=tmp_path / "two", quiet=True, **keys, **{"engine.workers": 2})
    config = load(base, {**keys, "engine.name": "flower"})
    grid = FakeGrid([FakeNode(100 + client, {"partition-id": client}) for client in reversed(range(5))])
    run_with(grid, config, tmp_path / "grid")
    expected = server_of(one.path)
    for path in (two.path, tmp_path / "grid"):
        assert digest(path) == digest(one)
        state = server_of(path)
        assert state.keys() == expected.keys()
        assert all(value.equal(expected[name]) for name, value in state.items())
        for line, again in zip(one.metrics, fedssl.Run(path).metrics, strict=True):
            assert [line[key] for key in ("loss", "bytes_up")] == [again[key] for key in ("loss", "bytes_up")]


def server_of(run: Path) -> dict[str, Any]:
    """All tensors that the server has after the last round."""
    return load_tensors(max(run.glob("checkpoints/round-*.safetensors")))[0]
