"""Several cells at once, in separate processes: same numbers, and no process outlives the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fedssl import api
from fedssl.papers.recipe import load
from fedssl.storage import read_lines
from fedssl.tables import workers
from fedssl.tables.cells import cells
from fedssl.tables.runner import run_cells
from fedssl.tables.workers import Workers
from tests.suite.processes import read_table, with_descendants
from tests.suite.waiting import cpu_seconds, wait_until
from tests.tables.conftest import SMALL

Write = Callable[..., Path]

# One column, so that there are two runs; short ones.
TWO = SMALL.replace('[[column]]\nname = "skewed"', '[[column]]\nname = "other"\nscales = ["paper"]').replace(
    "skewed = [60.0, 0.5]", "other = 1.0"
)


def test_two_jobs_give_the_numbers_of_one(write: Write, tmp_path: Path) -> None:
    planned = cells(load(str(write(TWO))).at("smoke"), 1, {"partition.scheme": "iid"})
    assert len(planned) == 2
    alone = {done.position: done.outcome for done in run_cells(planned, tmp_path / "one")}
    broken = replace(planned[0], measure=planned[0].measure.model_copy(update={"style": "x"}))
    both = {done.position: done.outcome for done in run_cells([*planned, broken], tmp_path / "two", jobs=2)}
    for position in (0, 1):
        assert not both[position].error
        assert both[position].number == alone[position].number
        assert both[position].untrained == alone[position].untrained
        metrics = [tmp_path / name / planned[position].folder / "metrics.jsonl" for name in ("one", "two")]
        losses = [[line["loss"] for line in read_lines(file)] for file in metrics]
        assert losses[0] == losses[1]
    assert "no style 'x'" in both[2].error  # the third waited for the run that it shares


def test_a_worker_that_dies_fails_its_cell_alone(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the worker: the first cell kills it, the others are answered."""
    stand_in = tmp_path / "stand_in.py"
    stand_in.write_text(
        "import json, os, sys\n"
        "for line in sys.stdin:\n"
        "    if 'simclr' in line: os._exit(9)\n"
        "    print(json.dumps({'number': 1.0, 'untrained': None, 'seconds': 0.0, 'error': ''}), flush=True)\n"
    )
    monkeypatch.setattr(workers, "COMMAND", [sys.executable, str(stand_in)])
    planned = cells(load(str(write(SMALL))).at("smoke"), 2, {})
    found = [(done.position, done.outcome) for done in run_cells(planned, tmp_path / "runs", jobs=2)]
    assert sorted(position for position, _ in found) == list(range(8))
    for position, outcome in found:
        dies = planned[position].config.objective.name == "simclr"
        assert outcome.error == ("its process ended with code 9" if dies else "")


def test_workers_end_with_their_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write) -> None:
    monkeypatch.setattr(workers, "COMMAND", [sys.executable, "-c", "input(); input()"])
    (cell, *_) = cells(load(str(write(SMALL))).at("smoke"), 1, {})
    with Workers(2) as pool:
        pool.start(0, cell, tmp_path)
        assert pool.free
        assert pool.busy == [tmp_path]
        processes = pool.processes
        assert [process.poll() for process in processes] == [None]
    assert all(process.poll() is not None for process in processes)


def test_a_killed_campaign_leaves_no_process_and_can_continue(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(TWO.replace("rounds = 2", "rounds = 300\ncheckpoint = { every = 1 }"))
    words = ["reproduce", str(file), "--seeds", "1", "--jobs", "2", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "fedssl.cli", *words]
    runs = tmp_path / "out" / "runs"

    def rounds() -> list[int]:
        return [len(list(read_lines(metrics))) for metrics in runs.glob("*/metrics.jsonl")]

    campaign = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_until(
            lambda: len(rounds()) == 2 and min(rounds()) >= 2,
            "both runs should be at work",
            running=[campaign],
            progress=lambda: cpu_seconds(campaign),
        )
        family = with_descendants([campaign.pid], read_table())
        assert len(family) >= 3  # the command and its two workers
    finally:
        campaign.send_signal(signal.SIGKILL)
        campaign.wait()
    wait_until(lambda: not any(map(alive, family)), "the workers should end by themselves")
    assert not list(runs.glob("*/result.json"))

    # The same command continues both.
    resumed = []

    def resume(path: Path, quiet: bool) -> None:
        resumed.append(path)
        raise KeyError("enough")

    monkeypatch.setattr(api, "resume", resume)
    planned = cells(load(str(file)).at("smoke"), 1, {})
    assert all("enough" in done.outcome.error for done in run_cells(planned, runs))
    assert sorted(resumed) == sorted(metrics.parent for metrics in runs.glob("*/metrics.jsonl"))


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
