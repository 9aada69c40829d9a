"""What the OpenMP library itself says about how its threads wait."""

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
@pytest.mark.parametrize(
    "command",
    [
        ["-c", "import fedssl, torch"],
        ["-m", "fedssl.engines.worker", "no-such-folder"],
    ],
    ids=["python", "worker"],
)
def test_spinning_is_bounded_before_pytorch_loads_openmp(command):
    shown = displayed(*command)
    assert shown
    assert all(line.endswith(f"GOMP_SPINCOUNT = '{SPINS}'") for line in shown)


def test_processes_that_are_started_inherit_the_bound(unset):
    bound_spinning()
    assert os.environ["GOMP_SPINCOUNT"] == str(SPINS)


@pytest.mark.parametrize(("name", "value"), [("GOMP_SPINCOUNT", "7"), ("OMP_WAIT_POLICY", "ACTIVE")])
def test_a_setting_of_the_users_is_left_alone(name, value, unset):
    unset.setenv(name, value)
    bound_spinning()
    assert {key: os.environ.get(key) for key in SET_BY_USERS if key in os.environ} == {name: value}
