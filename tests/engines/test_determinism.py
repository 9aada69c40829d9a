"""The same config gives the same bits on every engine and after any number of stops."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from tests.small import QUEUE, arguments, digest, small_run
from tests.suite.waiting import wait_for_file

import fedssl

CASES = [
    ("simclr", "fedavg"),
    ("byol", "fedavg"),
    ("byol", "fedema"),
    ("moco-v2", "fedavg"),
    ("byol", "standalone"),
]


@pytest.mark.parametrize(("objective", "method"), CASES)
def test_two_runs_are_the_same_and_another_seed_is_not(tmp_path, objective, method):
    keys = {"objective": objective, "method": method, **QUEUE.get(objective, {})}
    first = small_run(tmp_path / "a", **keys)
    assert digest(first) == digest(small_run(tmp_path / "b", **keys))
    assert digest(first) != digest(small_run(tmp_path / "c", seed=1, **keys))


def test_workers_give_the_same_bits_as_one_process(tmp_path):
    """(Started as users start them; tests/engines/test_engines_agree.py has more methods.)"""
    keys = {"objective": "byol", "method": "fedema"}
    one = small_run(tmp_path / "one", **keys)
    two = small_run(tmp_path / "two", **keys, **{"engine.workers": 2})
    assert digest(one) == digest(two)
    assert [line["loss"] for line in one.metrics] == [line["loss"] for line in two.metrics]


def start(words, out):
    command = [sys.executable, "-m", "fedssl.cli", "run", *words, "--out", str(out), "--quiet"]
    return subprocess.Popen(command)


@pytest.mark.parametrize(("workers", "most"), [(1, 3), (2, 2)])
def test_a_run_that_is_killed_at_any_moment_resumes_to_the_same_bits(tmp_path, workers, most):
    keys = {"objective": "byol", "method.name": "fedema", "rounds": 12, "checkpoint.every": 2}
    keys |= {"engine.workers": workers, "data.limit": 200}
    keys["objective.name"] = keys.pop("objective")
    whole = fedssl.run(dict_of(arguments(**keys)), out=tmp_path / "whole", quiet=True)
    chance, out = random.Random(workers), tmp_path / "killed"
    process, kills = start(arguments(**keys), out), 0
    while kills < most:
        wait_for_file(out / "config.toml", process)
        time.sleep(chance.uniform(0.0, 1.5))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        process = subprocess.Popen([sys.executable, "-m", "fedssl.cli", "resume", str(out), "--quiet"])
    assert process.wait() == 0
    assert kills >= 1
    assert digest(out) == digest(whole)
    lines = fedssl.Run(out).metrics
    assert [line["round"] for line in lines] == list(range(1, 13))
    assert [line["loss"] for line in lines] == [line["loss"] for line in whole.metrics]


def dict_of(words):
    from fedssl.config import load, parse_overrides

    return load(None, parse_overrides(words))


def test_stopping_after_every_round_changes_nothing(tmp_path):
    """In-process version of the test above that stops after every round."""
    keys = {"objective": "byol", "method": "fedema", "rounds": 4, "checkpoint.every": 1}
    whole = small_run(tmp_path / "whole", **keys)

    class Stop(Exception):
        pass

    from fedssl import experiment
    from fedssl.listener import Listener

    class StopAt(Listener):
        def __init__(self, number):
            self.number = number

        def round(self, line):
            if line["round"] == self.number:
                raise Stop

    from tests.small import SMALL

    from fedssl.config import load

    out = tmp_path / "stopped"
    with pytest.raises(Stop):
        experiment.run(load(SMALL, keys), out, StopAt(1))
    for number in (2, 3, 4):
        with pytest.raises(Stop):
            experiment.resume(out, StopAt(number))
    experiment.resume(out, Listener())
    assert digest(out) == digest(whole)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_threads_are_part_of_the_config(tmp_path):
    run = small_run(tmp_path / "a", rounds=1)
    assert run.config.engine.threads == 1


@pytest.mark.usefixtures("warm_workers")
def test_workers_open_a_memory_mapped_set_in_place(tmp_path, monkeypatch):
    """Images beyond data.memory_mb are not copied for workers, and train to the same bits."""
    import numpy as np
    from PIL import Image
    from tests.small import SMALL

    monkeypatch.setenv("FEDSSL_CACHE", str(tmp_path / "cache"))
    folder, rng = tmp_path / "photos", np.random.default_rng(0)
    folder.mkdir()
    for number in range(24):
        Image.fromarray(rng.integers(0, 255, (128, 128, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    data = {
        "data": {"name": "folder", "root": str(folder), "memory_mb": 1},
        "partition": {"scheme": "iid", "clients": 2},
    }
    settings = {**SMALL, **data, "rounds": 1, "train": {"batch_size": 4, "epochs": 0.5}}
    runs = [
        fedssl.run(settings, out=tmp_path / f"{workers}", quiet=True, **{"engine.workers": workers})
        for workers in (1, 2)
    ]
    assert digest(runs[0]) == digest(runs[1])
    assert runs[1].metrics[0]["failed"] == []
