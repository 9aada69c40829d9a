"""How OpenMP's threads wait, as reported by the library itself."""

import os
import subprocess
import sys

import pytest

from fedssl.openmp import SET_BY_USERS, SPINS, bound_spinning


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
def test_the_users_settings_are_not_changed(name, value, unset):
    unset.setenv(name, value)
    bound_spinning()
    assert {key: os.environ.get(key) for key in SET_BY_USERS if key in os.environ} == {name: value}
