"""Waiting for something that takes as long as the machine needs."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.suite.processes import read_table, with_descendants

PATIENCE = 300.0  # seconds without progress, on a machine of nominal speed
ENDLESS = 10  # times the patience: something that moves but never arrives
NOMINAL = 2.0  # seconds in which a quiet machine starts Python and imports PyTorch

Popen = subprocess.Popen[Any]


def wait_until(
    condition: Callable[[], bool],
    what: str,
    *,
    running: Iterable[Popen] = (),
    progress: Callable[[], object] = lambda: None,
    patience: float = PATIENCE,
    poll: float = 0.05,
    details: Callable[[], str] = lambda: "",
) -> None:
    """Wait for a condition as long as there is progress.

    Args:
        condition: Checked every `poll` seconds.
        what: What is waited for, for the error message.
        running: Processes without which the condition cannot come true.
        progress: Its value changes while there is progress, see `files_state` and `cpu_seconds`.
        patience: Seconds without progress; multiplied by `slowness()` before the wait fails.
        details: What else to say in the error message, such as the end of a log.

    Raises:
        AssertionError: There was no progress, or one of the processes has ended.
    """
    began = changed = looked = time.monotonic()
    seen = progress()
    while not condition():
        ended = [process for process in running if process.poll() is not None]
        if ended and not condition():
            codes = ", ".join(str(process.returncode) for process in ended)
            raise AssertionError(f"{what}: a process has ended (exit code {codes})\n{details()}")
        now = time.monotonic()
        if now - looked >= 1.0:
            looked, last, seen = now, seen, progress()
            if seen != last:
                changed = now
        if now - changed > patience and now - changed > patience * slowness():
            raise AssertionError(f"{what}: no progress for {now - changed:.0f} s\n{details()}")
        if now - began > ENDLESS * patience and now - began > ENDLESS * patience * slowness():
            raise AssertionError(f"{what}: still not after {now - began:.0f} s\n{details()}")
        time.sleep(poll)


def wait_for_file(file: Path, process: Popen) -> None:
    """Wait until a process has written a file, or has ended."""
    wait_until(
        lambda: file.exists() or process.poll() is not None,
        f"{file.name} should be written",
        progress=lambda: cpu_seconds(process),
    )


def wait_for_exit(process: Popen, what: str) -> int:
    """The exit code of a process that writes nothing to a pipe, or little."""
    wait_until(lambda: process.poll() is not None, what, progress=lambda: cpu_seconds(process))
    code: int = process.returncode
    return code


@functools.cache
def slowness() -> float:
    """How many times longer than nominal this machine takes to start a process that imports PyTorch."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return max(1.0, (time.monotonic() - began) / NOMINAL)


def files_state(*paths: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of files, and of all files in folders: changes whenever something is written."""
    found = []
    for path in paths:
        for file in [path, *path.rglob("*")]:
            try:
                status = os.stat(file)
            except OSError:
                continue
            found.append((str(file), status.st_size, status.st_mtime_ns))
    return found


def cpu_seconds(*processes: Popen) -> float:
    """Processor time of these processes and their descendants."""
    table = read_table()
    pids = with_descendants([process.pid for process in processes], table)
    return sum(table[pid].cpu for pid in pids if pid in table)
