"""Devices other than the CPU, as far as they can be tested without one.

On PyTorch's `meta` device tensors have shapes and no values, so anything that reads a value (`.item()`,
`.numpy()`, boolean indexing, a copy to the CPU) fails. On a GPU these would wait for all its work.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.small import GENERATIVE, SMALL, digest, small_run

from fedssl.config import load
from fedssl.data.federation import federate
from fedssl.engines import device as devices
from fedssl.engines import workers
from fedssl.engines.live import LiveRun
from fedssl.engines.memory import MemoryStore
from fedssl.engines.tasks import Task
from fedssl.errors import ConfigError
from fedssl.methods import METHODS, training
from fedssl.objectives import OBJECTIVES
from fedssl.state import Broadcast, ClientMemory
from fedssl.threads import run_ahead

GAN = {"method": "padpaf", "data.mean": 0.5, "data.std": 0.5}
NEEDS: dict[str, dict[str, Any]] = {
    "mae": {"model.encoder": "vit_tiny", "model.patch": 4},
    "simmim": {"model.encoder": "vit_tiny", "model.patch": 4},
    "gan": GAN,
    "conditional-gan": GAN,
    "vae": GAN,
    "featarc": {"model.projector_out": 16},
}
POINTS = ("linear-gan", "linear-regression")  # of a plane; they have no images
ENDS = ("mean = float(", 'values["generator_loss"] = float(')  # losses are read once, at the end of a round


def train_on_meta(folder: Path, **keys: Any) -> str:
    """Let a client receive the first model and train; returns the first source line that reads a value."""
    config = load(SMALL, {"device": "meta", **keys})
    runner = LiveRun(config, federate(config), MemoryStore(folder, 16), classes=10).runner
    first = runner.first_server()
    client = runner.client(Task(1, 0, Broadcast(first.model, first.clusters)))
    broadcast = config.method.broadcast(first, 0, 1)

    def take_part() -> None:
        config.method.receive(client, broadcast, ClientMemory().state)
        client.received = config.method.reference_model(client, broadcast)
        config.method.train(client)

    with pytest.raises((RuntimeError, NotImplementedError)) as error:
        take_part()
    lines = [str(entry.statement).strip() for entry in error.traceback if "fedssl" in str(entry.path)]
    return lines[-1]


@pytest.fixture(autouse=True)
def no_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast does not know the meta device."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name not in POINTS])
def test_no_step_of_an_objective_reads_a_value(tmp_path: Path, objective: str) -> None:
    assert train_on_meta(tmp_path, objective=objective, **NEEDS.get(objective, {})).startswith(ENDS)


@pytest.mark.parametrize("method", [name for name in METHODS if "padpaf" not in name])
def test_no_step_of_a_method_reads_a_value(tmp_path: Path, method: str) -> None:
    assert train_on_meta(tmp_path, method=method, **NEEDS.get(method, {})).startswith(ENDS)


def test_prefetched_batches_give_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, views of the next steps are made in a thread, even if the loss draws random numbers."""
    keys = {"objective": "sigreg", "rounds": 2}
    plain = digest(small_run(tmp_path / "plain", **keys))
    made = training.prepare_batches
    monkeypatch.setattr(training, "prepare_batches", lambda *given: run_ahead(made(*given)))
    assert digest(small_run(tmp_path / "ahead", **keys)) == plain


@pytest.mark.parametrize(
    ("name", "gpus", "dealt"),
    [
        ("cpu", 2, ["cpu", "cpu", "cpu"]),
        ("auto", 0, ["auto", "auto", "auto"]),
        ("cuda", 1, ["cuda", "cuda", "cuda"]),
        ("cuda", 2, ["cuda:0", "cuda:1", "cuda:0"]),
        ("auto", 3, ["cuda:0", "cuda:1", "cuda:2"]),
        ("cuda:1", 2, ["cuda:1", "cuda:1", "cuda:1"]),
    ],
)
def test_gpus_are_assigned_to_workers_in_turn(
    name: str, gpus: int, dealt: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert devices.deal_devices(name, 3) == dealt


def test_a_worker_and_its_replacement_use_the_same_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "deal_devices", lambda *_: ["cpu", "meta"])
    config = load(SMALL, {"engine.workers": 2})
    pool = workers.Workers(config, federate(config), tmp_path, 2)
    try:
        assert [worker.process.args[-1] for worker in pool.workers] == ["cpu", "meta"]
        dead = pool.workers[1]
        dead.end()
        pool._replace(dead)
        assert pool.workers[1].process.args[-1] == "meta"
    finally:
        pool.close()


def test_a_missing_device_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="device='cuda:7' cannot be used"):
        devices.find_device("cuda:7")
    assert devices.find_device("cpu") == torch.device("cpu")


def test_all_generative_objectives_are_tested() -> None:
    assert set(GENERATIVE) - set(POINTS) <= NEEDS.keys()
