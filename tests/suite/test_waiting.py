"""Waits end when the condition holds, and fail without progress for longer than this machine explains."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.suite import waiting
from tests.suite.clock import Clock
from tests.suite.waiting import cpu_seconds, files_state, wait_until


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    monkeypatch.setattr(waiting, "slowness", lambda: 1.0)
    return clock


def test_a_wait_lasts_as_long_as_there_is_progress(clock):
    wait_until(lambda: clock.now > 95, "late", progress=lambda: clock.now // 9, patience=10, poll=1)
    assert clock.now == 96


@pytest.mark.parametrize(("slow", "seconds"), [(1.0, 11), (3.0, 31)])
def test_patience_without_progress_grows_with_a_slow_machine(clock, monkeypatch, slow, seconds):
    monkeypatch.setattr(waiting, "slowness", lambda: slow)
    with pytest.raises(AssertionError, match=f"the end: no progress for {seconds} s\nthe log"):
        wait_until(lambda: False, "the end", patience=10, poll=1, details=lambda: "the log")
    assert clock.now == seconds


def test_progress_without_end_times_out(clock):
    with pytest.raises(AssertionError, match="still not after 101 s"):
        wait_until(lambda: False, "the end", progress=lambda: clock.now, patience=10, poll=1)


def test_a_process_that_ends_before_is_an_error():
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(AssertionError, match=r"the file: a process has ended \(exit code 3\)"):
        wait_until(lambda: False, "the file", running=[process])


def test_a_process_may_end_with_the_condition(tmp_path):
    code = "import sys; open(sys.argv[1], 'w').close()"
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "file")])
    wait_until((tmp_path / "file").exists, "the file", running=[process])
    process.wait()


def test_slowness_is_at_least_nominal(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    for seconds, expected in ((0.5, 1.0), (waiting.NOMINAL * 4, 4.0)):
        monkeypatch.setattr(waiting.subprocess, "run", lambda *_, seconds=seconds, **__: clock.sleep(seconds))
        assert waiting.slowness.__wrapped__() == expected


def test_files_that_grow_or_appear_are_progress(tmp_path):
    log = tmp_path / "log"
    log.write_text("a")
    seen = [files_state(tmp_path)]
    log.write_text("ab")
    seen.append(files_state(tmp_path))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "new").touch()
    seen.append(files_state(tmp_path))
    assert seen[0] != seen[1] != seen[2]
    assert files_state(tmp_path) == seen[2]
    assert files_state(tmp_path / "absent") == []


def test_processor_time_of_a_child_counts():
    """The given process itself only waits."""
    busy = "while True: pass"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    try:
        wait_until(lambda: cpu_seconds(process) > 0.5, "processor time", running=[process])
    finally:
        waiting.os.killpg(process.pid, 9)
        process.wait()
    assert cpu_seconds(process) == 0
