"""Flower's simulation on Ray gives the bits of one process."""

import subprocess
import sys

import pytest

pytest.importorskip("flwr")
pytest.importorskip("ray")

from tests.engines.flower.test_grid import assert_same_server
from tests.small import SMALL, digest

import fedssl

BASE = {**SMALL, "partition": {"scheme": "classes", "clients": 3, "classes": 4}, "rounds": 2}

RAY = """
import ray, sys
print(ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False).address_info["address"], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def running_ray():
    """The address of a running Ray cluster."""
    with subprocess.Popen(
        [sys.executable, "-c", RAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process.stdout.readline().strip()
        process.stdin.close()


def assert_the_same_on_ray(tmp_path, **keys):
    local = fedssl.run(BASE, out=tmp_path / "local", quiet=True, **keys)
    ray = fedssl.run(BASE, out=tmp_path / "ray", quiet=True, **keys, **{"engine.name": "flower"})
    assert digest(ray) == digest(local)
    assert_same_server(ray.path, local.path, 2)
    assert [line["loss"] for line in ray.metrics] == [line["loss"] for line in local.metrics]
    return local


def test_a_new_ray_cluster_gives_the_same_bits_as_one_process(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert_the_same_on_ray(tmp_path, objective="byol", method="fedema")


def test_a_running_ray_cluster_gives_the_same_bits_and_shares_threads(tmp_path, monkeypatch, running_ray):
    """The first of three clients trains with two threads on every engine."""
    monkeypatch.setenv("RAY_ADDRESS", running_ray)
    keys = {"method": "featarc", "model.width": 16, "model.projector_out": 64}
    shared = assert_the_same_on_ray(tmp_path, **keys, **{"engine.wave": 2})
    alone = fedssl.run(BASE, out=tmp_path / "alone", quiet=True, **keys)
    assert digest(shared) != digest(alone)
