"""A stopped federation of generators continues to the same bits, including the server's Adam."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fedssl
from fedssl import experiment
from fedssl.config import load
from fedssl.engines.checkpoint import Checkpoints
from fedssl.engines.memory import MemoryStore
from fedssl.listener import Listener
from fedssl.storage import write_toml
from tests.generative.small import KINDS, run_of
from tests.suite.waiting import cpu_seconds, wait_until


class Stop(Exception):
    pass


class StopAt(Listener):
    def __init__(self, number: int) -> None:
        self.number = number

    def round(self, line: dict[str, Any]) -> None:
        if line["round"] == self.number:
            raise Stop


def everything(run: Path) -> dict[str, torch.Tensor]:
    """All tensors of a finished run: server, its optimizer, and every client's memory."""
    memories = MemoryStore(run / "checkpoints" / "clients", 0)
    latest = Checkpoints(run / "checkpoints", 0, memories).latest()
    server = latest.server
    found = {f"server/{name}": value for name, value in (server.model | server.memory).items()}
    for client, written in latest.memory_rounds.items():
        found |= {f"{client}/{name}": value for name, value in memories.load(client, written).state.items()}
    return found


def assert_same(a: Path, b: Path) -> None:
    first, second = everything(a), everything(b)
    assert first.keys() == second.keys()
    assert any(name.startswith("server/adam.second/") for name in first)
    assert any(name.startswith("1/style_encoder") for name in first)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@pytest.mark.parametrize("kind", ["gan", "vae", "lens"])
def test_stopping_after_every_round_changes_nothing(kind: str, tmp_path: Path) -> None:
    keys = {"rounds": 3, "checkpoint.every": 1}
    whole = run_of(kind, tmp_path / "whole", **keys)
    out = tmp_path / "stopped"
    with pytest.raises(Stop):
        experiment.run(load(KINDS[kind], keys), out, StopAt(1))
    with pytest.raises(Stop):
        experiment.resume(out, StopAt(2))
    experiment.resume(out, Listener())
    assert_same(whole.path, out)
    assert [line["loss"] for line in fedssl.Run(out).metrics] == [line["loss"] for line in whole.metrics]


def test_a_run_that_is_killed_resumes_to_the_same_bits(tmp_path: Path) -> None:
    keys = {"rounds": 6, "checkpoint.every": 2}
    whole = run_of("gan", tmp_path / "whole", **keys)
    write_toml(tmp_path / "config.toml", load(KINDS["gan"], keys).to_dict())
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "fedssl.cli"]
    process = subprocess.Popen(
        [*command, "run", str(tmp_path / "config.toml"), "--out", str(out), "--quiet"], env=os.environ
    )
    metrics = out / "metrics.jsonl"
    wait_until(
        lambda: metrics.exists() and metrics.read_text().count("\n") >= 3,
        "three rounds should end",
        running=[process],
        progress=lambda: cpu_seconds(process),
        poll=0.01,
    )
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "result.json").exists(), "it had finished before it could be killed"
    fedssl.resume(out, quiet=True)
    assert_same(whole.path, out)


@pytest.mark.usefixtures("warm_workers")
def test_worker_processes_give_the_same_bits(tmp_path: Path) -> None:
    """Also with `partition.workers`, each of which serves its clients in turn."""
    keys = {"partition": {"scheme": "iid", "clients": 4, "workers": 2}, "rounds": 2}
    one = run_of("conditional-gan", tmp_path / "one", **keys)
    two = run_of("conditional-gan", tmp_path / "two", **keys, **{"engine.workers": 2})
    assert_same(one.path, two.path)
