"""What the OpenMP library itself says about how its threads wait."""

import json
import os
import subprocess
import sys
import threading

import pytest

from fedssl.openmp import (
    CALM,
    SET_BY_USERS,
    SPINS,
    Busy,
    bound_spinning,
    sleep_when_busy,
)


@pytest.fixture
def unset(monkeypatch):
    for name in SET_BY_USERS:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def displayed(*command):
    """The environment as libgomp shows it when it is loaded."""
    environment = {name: value for name, value in os.environ.items() if name not in SET_BY_USERS}
    done = subprocess.run(
        [sys.executable, *command],
        env=environment | {"OMP_DISPLAY_ENV": "VERBOSE"},
        capture_output=True,
        text=True,
    )
    return [line.strip() for line in done.stderr.splitlines() if "GOMP_SPINCOUNT" in line]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="for the GNU OpenMP library")
def test_a_worker_bounds_spinning_before_pytorch_loads_openmp():
    shown = displayed("-m", "fedssl.engines.worker", "no-such-folder", "cpu")
    assert shown
    assert all(line.endswith(f"GOMP_SPINCOUNT = '{SPINS}'") for line in shown)


def test_importing_fedssl_bounds_spinning_and_leaves_pytorch_for_later(unset):
    code = "import fedssl, os, sys; print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(SPINS), "False"]


def test_processes_that_are_started_inherit_the_bound(unset):
    bound_spinning()
    assert os.environ["GOMP_SPINCOUNT"] == str(SPINS)


@pytest.mark.parametrize(("name", "value"), [("GOMP_SPINCOUNT", "7"), ("OMP_WAIT_POLICY", "ACTIVE")])
def test_a_setting_of_the_users_is_left_alone(name, value, unset):
    unset.setenv(name, value)
    bound_spinning()
    assert {key: os.environ.get(key) for key in SET_BY_USERS if key in os.environ} == {name: value}


CROWDED = """
import ctypes, json, time, torch
from fedssl.openmp import Crowd, loaded

library = next(each for each in loaded() if "torch" in each._name)
nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)

def spent():
    "Processor time while threads wait for the next parallel section, which comes after they may sleep."
    before = time.process_time()
    for _ in range(40):
        library.GOMP_parallel(nothing, None, 2, 0)
        time.sleep(0.01)
    return time.process_time() - before

spent()
alone = spent()
crowd = Crowd()
crowded = spent()
crowd.leave()
print(json.dumps([alone, crowded, spent()]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="for the GNU OpenMP library")
def test_threads_sleep_at_once_while_there_is_a_crowd():
    environment = {**os.environ, "GOMP_SPINCOUNT": "300000"}
    done = subprocess.run(
        [sys.executable, "-c", CROWDED], env=environment, capture_output=True, text=True, check=True
    )
    alone, crowded, again = json.loads(done.stdout)
    assert crowded < alone / 2
    assert crowded < again / 2


def test_busy_after_two_checks_and_idle_after_a_while():
    busy = Busy()
    assert not busy.look(0.3)  # a single wait says nothing
    assert not busy.look(0.04)
    assert not busy.look(0.3)
    assert busy.look(0.3)
    assert [busy.look(0.0) for _ in range(CALM)] == [True] * (CALM - 1) + [False]
    assert [busy.look(0.2), busy.look(0.2)] == [False, True]
    assert busy.look(0.04)  # between the two limits nothing changes


def test_the_watch_ends_with_the_work(unset):
    bound_spinning()
    with sleep_when_busy():
        assert any(thread.name == "fedssl-busy" for thread in threading.enumerate())
    assert not any(thread.name == "fedssl-busy" for thread in threading.enumerate())


def test_nothing_is_watched_where_the_user_decided(unset):
    unset.setenv("OMP_WAIT_POLICY", "ACTIVE")
    with sleep_when_busy():
        assert not any(thread.name == "fedssl-busy" for thread in threading.enumerate())
