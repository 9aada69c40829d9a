"""Processes started by tests end with pytest, however it ends."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.suite.inner import output_of, start_pytest
from tests.suite.processes import parse_time, read_proc, read_ps, read_table, with_descendants
from tests.suite.waiting import cpu_seconds, wait_for_exit, wait_until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")

# A server with a worker, a child in a new session, and a daemon whose parent has ended.
TREE = """
import os, pathlib, subprocess, sys, time

def start(code, **options):
    return subprocess.Popen([sys.executable, "-c", code, sys.argv[1]], **options)

NOTE = "import os, sys, time; open(f'{sys.argv[1]}/{os.getpid()}.pid', 'w').close(); "
start(NOTE + "time.sleep(3600)")
start(NOTE + "time.sleep(3600)", start_new_session=True)
DAEMON = "import subprocess as s, sys; s.Popen([sys.executable, '-c', {!r}, sys.argv[1]], process_group=0)"
start(DAEMON.format(NOTE + "time.sleep(3600)")).wait()
open(f"{sys.argv[1]}/{os.getpid()}.pid", "w").close()
time.sleep(3600)
"""

TEST = """
import pathlib, subprocess, sys, time

def test_that_starts_processes():
    here = pathlib.Path(__file__).parent
    subprocess.Popen([sys.executable, here / "tree.py", here])
    while len(list(here.glob("*.pid"))) < 4:
        time.sleep(0.05)
    (here / "started").touch()
    {then}
"""


def start_tree(folder: Path, then: str, *words: str):
    (folder / "tree.py").write_text(TREE)
    return start_pytest(folder, TEST.format(then=then), *words)


def left(folder: Path) -> set[int]:
    return {int(file.stem) for file in folder.glob("*.pid")} & read_table().keys()


@pytest.mark.parametrize("words", [(), ("-n", "1")], ids=["one-process", "xdist"])
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda each: each.name
)
def test_a_stopped_pytest_leaves_no_process(tmp_path, number, words):
    process = start_tree(tmp_path, "time.sleep(3600)", *words)
    wait_until(
        (tmp_path / "started").exists,
        "the tree should start",
        running=[process],
        progress=lambda: cpu_seconds(process),
        details=lambda: output_of(tmp_path),
    )
    below = with_descendants([process.pid], read_table()) - {process.pid}
    assert len(left(tmp_path)) == 4
    process.send_signal(number)
    wait_for_exit(process, "pytest should end")
    wait_until(lambda: not left(tmp_path), f"no process should be left: {left(tmp_path)}")
    wait_until(lambda: not below & read_table().keys(), "workers and guards should end, too")


def test_forgotten_processes_end_with_the_session(tmp_path):
    process = start_tree(tmp_path, "assert True")
    assert wait_for_exit(process, "pytest should end") == 0, output_of(tmp_path)
    wait_until(lambda: not left(tmp_path), "no process should be left")


def test_other_processes_are_left_alone(tmp_path):
    """The guard of the inner pytest ends its processes; this pytest and its children continue."""
    other = start_tree(tmp_path, "time.sleep(3600)")
    wait_until((tmp_path / "started").exists, "the tree should start", running=[other])
    inside = tmp_path / "inside"
    inside.mkdir()
    process = start_tree(inside, "assert True")
    assert wait_for_exit(process, "pytest should end") == 0, output_of(inside)
    wait_until(lambda: not left(inside), "no process should be left")
    assert len(left(tmp_path)) == 4
    other.kill()
    other.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="compares /proc with ps")
def test_ps_and_proc_agree():
    proc, ps = read_proc(), read_ps()
    here = os.getpid()
    assert proc[here].parent == ps[here].parent == os.getppid()
    assert abs(proc[here].cpu - ps[here].cpu) < 2  # ps counts whole seconds
    assert "PATH=" in proc[here].environment
    assert "PATH=" in ps[here].environment


@pytest.mark.parametrize(
    ("text", "seconds"), [("0:01.50", 1.5), ("00:01:02", 62), ("1-00:00:01", 86401), ("100:00.00", 6000)]
)
def test_processor_times_of_ps(text, seconds):
    assert parse_time(text) == seconds
