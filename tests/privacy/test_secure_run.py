"""Secure aggregation in whole runs: the plain result, the same bits everywhere, and no upload in clear."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.small import SMALL, digest, small_run

pytest.importorskip("flwr")

import fedssl
from fedssl.config import load
from fedssl.engines.flower import messages
from fedssl.engines.local import InProcess
from fedssl.engines.tasks import Question
from fedssl.engines.workers import Workers
from fedssl.privacy.secure.server import Answer
from fedssl.tensorfile import load_tensors
from tests.engines.flower.grid import FakeGrid, FakeNode, at_sites, run_with
from tests.engines.flower.test_grid import site_nodes

SECURE = {"privacy.secure": True}
THREE = {**SMALL, "partition": {"scheme": "classes", "clients": 3, "classes": 4}, "views": {"flip": 0.0}}


def model(path: Path, round: int) -> dict[str, torch.Tensor]:
    tensors, _ = load_tensors(path / "checkpoints" / f"round-{round:06d}.safetensors")
    return {name: value for name, value in tensors.items() if value.is_floating_point()}


def assert_close(a: Path, b: Path, round: int, atol: float) -> None:
    first, second = model(a, round), model(b, round)
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=0, atol=atol, msg=name)


# --- the plain sum --------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["fedavg", "l-dawa", "l-dawa-loss", "euc"])
def test_the_model_is_that_of_the_plain_run(rule: str, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"rounds": 1, "partition": {"scheme": "dirichlet", "alpha": 0.5}}
    keys |= {"aggregation.name": rule, "aggregation.client_side": rule != "fedavg"}
    plain = small_run(tmp_path / "plain", **keys)
    secure = small_run(tmp_path / "secure", **keys, **SECURE)
    (line,) = secure.metrics
    assert line["quantisation"] < 1e-9
    assert_close(plain.path, secure.path, 1, atol=1e-6)  # float32 itself has 1e-7
    assert line["loss"] == pytest.approx(plain.metrics[0]["loss"], rel=1e-6)
    assert line["views"] == plain.metrics[0]["views"]
    assert all(set(client) == {"client", "seconds"} for client in line["clients"])


def test_half_the_bits_are_coarser_and_half_the_size(tmp_path: Path) -> None:
    keys = {"rounds": 1, "participation.max_images": 32}
    wide = small_run(tmp_path / "wide", **keys, **SECURE)
    narrow = small_run(tmp_path / "narrow", **keys, **SECURE, **{"privacy.bits": 32})
    stated = narrow.metrics[0]["quantisation"]
    assert 1e-9 < stated < 1e-5
    assert_close(wide.path, narrow.path, 1, atol=stated + 1e-6)
    ratio = narrow.metrics[0]["bytes_up"] / wide.metrics[0]["bytes_up"]
    assert 0.45 < ratio < 0.6


def test_masses_too_small_for_the_bits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        fedssl.errors.RunError, match=r"rounding may change a parameter by .*participation\.max_images"
    ):
        small_run(tmp_path / "run", rounds=1, **SECURE, **{"privacy.bits": 32})


def test_a_number_beyond_the_bound_leaves_the_client_out(tmp_path: Path) -> None:
    with pytest.raises(fedssl.errors.RunError, match=r"the bound is 1e-09"):
        small_run(tmp_path / "run", rounds=1, **SECURE, **{"privacy.bound": 1e-9})


# --- the same bits everywhere ------------------------------------------------------------------------


@pytest.mark.usefixtures("warm_workers")
def test_one_process_workers_and_sites_give_the_same_bits(tmp_path: Path) -> None:
    keys = {**SECURE, "objective": "byol", "rounds": 2}
    local = fedssl.run(THREE, out=tmp_path / "local", quiet=True, **keys)
    workers = fedssl.run(THREE, out=tmp_path / "workers", quiet=True, **keys, **{"engine.workers": 2})
    assert digest(workers) == digest(local)
    grid = FakeGrid(site_nodes(tmp_path, load(THREE)))
    run_with(grid, at_sites(THREE, ["site-0", "site-1", "site-2"], **keys), tmp_path / "grid")
    assert digest(tmp_path / "grid") == digest(local)
    again = fedssl.Run(tmp_path / "grid").metrics
    assert [line["bytes_up"] for line in again] == [line["bytes_up"] for line in local.metrics]


def test_noise_in_shares_gives_the_same_bits_too(tmp_path: Path) -> None:
    keys = {**SECURE, "privacy.mode": "client", "privacy.noise": 1.0, "privacy.random": "seed"}
    local = fedssl.run(THREE, out=tmp_path / "local", quiet=True, rounds=1, **keys)
    grid = FakeGrid(site_nodes(tmp_path, load(THREE)))
    config = at_sites(THREE, ["site-0", "site-1", "site-2"], rounds=1, **keys)
    run_with(grid, config, tmp_path / "grid")
    assert digest(tmp_path / "grid") == digest(local)
    assert local.metrics[0]["epsilon"] > 0


# --- who is lost ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["share", "mask", "unmask"])
def test_a_lost_client_only_misses_in_the_result(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run equals one without the client or, after its masked upload, the complete one."""
    ask = InProcess.ask

    def without(self: InProcess, questions: Sequence[Question]):
        for answer in ask(self, questions):
            lost = answer.client == 2 and questions[0].stage == stage and questions[0].round == 1
            yield Answer(2, failure="the power failed") if lost else answer

    monkeypatch.setattr(InProcess, "ask", without)
    keys = {**SECURE, "objective": "byol", "method.name": "fedavg", "rounds": 2}
    run = small_run(tmp_path / "run", **keys)
    monkeypatch.undo()
    if stage == "unmask":
        assert run.metrics[0]["failed"] == []
        assert digest(run) == digest(small_run(tmp_path / "whole", **keys))
        return
    assert [failed["client"] for failed in run.metrics[0]["failed"]] == [2]
    assert "the power failed" in run.metrics[0]["failed"][0]["reason"]
    assert run.metrics[1]["failed"] == []
    trained = InProcess.run

    def failing(self: InProcess, tasks: Any):
        for task, outcome in zip(tasks, trained(self, tasks), strict=True):
            if task.client == 2 and task.round == 1:
                self.runner.memories.discard(2, 1)
                outcome.upload, outcome.failure = None, "did not train"
            yield outcome

    monkeypatch.setattr(InProcess, "run", failing)
    assert digest(run) == digest(small_run(tmp_path / "absent", **keys))


def test_a_site_that_is_restarted_or_dies_between_exchanges(tmp_path: Path) -> None:
    """Secrets are on the site's disk: a restarted site continues, a lost one is left out."""
    sites = ["site-0", "site-1", "site-2"]
    nodes = site_nodes(tmp_path, load(THREE))

    def dies(node: FakeNode, stage: str) -> None:
        answer = node.answer

        def dying(message: Any) -> Any:
            if message.metadata.message_type == messages.SECURE:
                text = messages.read_text(message.content, 1 << 24)
                if text["stage"] == stage:
                    raise RuntimeError("killed")
            return answer(message)

        node.answer = dying  # type: ignore[method-assign]

    class Grid(FakeGrid):
        def pull_messages(self, message_ids: list[str]) -> list[Any]:
            try:
                return super().pull_messages(message_ids)
            except RuntimeError:
                (id,) = message_ids
                self.nodes[self.asked[id].metadata.dst_node_id].online = False
                return super().pull_messages(message_ids)

    dies(nodes[1], "mask")
    run_with(Grid(nodes), at_sites(THREE, sites, rounds=1, **SECURE), tmp_path / "grid")
    (line,) = fedssl.Run(tmp_path / "grid").metrics
    assert [failed["client"] for failed in line["failed"]] == [1]
    assert "lost before it sent its masked upload" in line["failed"][0]["reason"]


# --- nothing in clear -----------------------------------------------------------------------------------

SCAN = """
    import pathlib, sys
    process, folder, *files = sys.argv[1:]
    needles = []
    for file in files:
        data = pathlib.Path(file).read_bytes()
        # 16 bytes of the tensors, where they are not zeros or constants
        places = (data[at:at + 16] for at in range(len(data) // 2, len(data) - 16, 64))
        needles.append(next(needle for needle in places if len(set(needle)) > 8))
    found = set()
    with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
        for line in open(f"/proc/{process}/smaps"):
            first, second, *_ = line.split()
            if "-" in first:
                begin, end = (int(part, 16) for part in first.split("-"))
                searched, written = "rw" in second and "[v" not in line, 0
            elif first in ("Rss:", "Swap:"):
                written += int(second)
            if first != "VmFlags:" or not searched or not written:  # VmFlags is the last line of a mapping
                continue
            memory.seek(begin)
            try:
                content = memory.read(end - begin)
            except OSError:
                continue
            found |= {needle for needle in needles if needle in content}
    for file in pathlib.Path(folder).rglob("*"):
        if file.is_file() and "clients" not in file.parts:
            content = file.read_bytes()
            found |= {needle for needle in needles if needle in content}
    print(len(needles), len(found))
"""


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="reads a process's memory through /proc")
def test_no_upload_is_in_the_memory_or_files_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients train in separate processes; the memory of this process, the server's, is searched."""
    ask, found = Workers.ask, {}
    copies = tmp_path / "copies"
    copies.mkdir()

    def scan(name: str) -> None:
        files = [str(file) for file in sorted(copies.iterdir())]
        command = [
            sys.executable,
            "-c",
            textwrap.dedent(SCAN),
            str(os.getpid()),
            str(tmp_path / "run"),
            *files,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[name] = [int(number) for number in done.stdout.split()]

    def watched(self: Workers, questions: Sequence[Question]):
        stage = questions[0].stage
        if stage == "share":  # clients have trained, and keep their integers on their own disks
            for question in questions:
                source = self.memories / str(question.client) / "secure" / "parcel"
                subprocess.run(["cp", source, copies / str(question.client)], check=True)
        answers = list(ask(self, questions))
        if stage == "mask":  # the server has all uploads, masked
            scan(stage)
        yield from answers

    monkeypatch.setattr(Workers, "ask", watched)
    small_run(tmp_path / "run", rounds=1, **SECURE, **{"engine.workers": 2})
    assert found == {"mask": [5, 0]}
    kept = (copies / "0").read_bytes()  # now one of them is here: the search finds it
    scan("control")
    assert found["control"][1] >= 1
    assert kept
