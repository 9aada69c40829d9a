"""A guard that ends every process that tests started, however pytest itself ends.

`guard()` adds a unique variable to the environment, which child processes inherit, and starts this file as a
program of its own:

    python processes.py PID MARK

It waits until process PID has exited (or was killed) and then kills all processes that carry the mark, and
their descendants. The mark also finds processes in a new session, daemons, and children whose parents are
gone. A process that was forked by pytest and has not called exec does not show it: tests use subprocesses or
multiprocessing's spawn.

Only the standard library is used, so that the guard starts fast.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

POLL = 0.2  # seconds between two looks at the guarded process
SCANS = 300  # at most: a process that cannot be killed does not keep the guard alive

_guards: list[subprocess.Popen[bytes]] = []  # a Popen object that is deleted warns that its process runs


def guard() -> None:
    """End whatever this process starts from now on, as soon as this process has ended."""
    mark = f"FEDSSL_TESTS_{uuid.uuid4().hex}"
    # A new session, because Ctrl-C in a terminal goes to the whole foreground process group.
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), mark],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _guards.append(process)
    os.environ[mark] = "1"


def main() -> None:
    parent, mark = int(sys.argv[1]), sys.argv[2]
    while os.getppid() == parent:
        time.sleep(POLL)
    end_marked(mark)


def end_marked(mark: str) -> None:
    """Kill all processes that carry the mark until two scans in a row find none."""
    empty = 0
    for _ in range(SCANS):
        found = find_marked(mark)
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        empty = 0 if found else empty + 1
        if empty == 2:
            return
        time.sleep(0.1)


def find_marked(mark: str) -> set[int]:
    """Processes with the mark in their environment, and their descendants, which may have overwritten it."""
    table = read_table()
    marked = {pid for pid, process in table.items() if mark in process.environment}
    return with_descendants(marked, table) - {os.getpid()}


# --- the process table ----------------------------------------------------------------------------


class Process(NamedTuple):
    parent: int
    cpu: float  # seconds of processor time, without those of children
    environment: str


def read_table() -> dict[int, Process]:
    """All processes of this machine except zombies; environments only where they may be read."""
    return read_proc() if Path("/proc/self/stat").exists() else read_ps()


def read_proc() -> dict[int, Process]:
    tick = os.sysconf("SC_CLK_TCK")
    table: dict[int, Process] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):  # it has just ended
            # The name in parentheses can hold anything: fields are counted from its end.
            state, parent, *fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if state in "ZX":
                continue
            environment = ""
            with suppress(PermissionError):
                environment = (folder / "environ").read_text(errors="replace")
            cpu = sum(int(field) for field in fields[9:11]) / tick
            table[int(folder.name)] = Process(int(parent), cpu, environment)
    return table


def read_ps() -> dict[int, Process]:
    """The same from `ps`, which appends the environment to the command."""
    options = ["-axEww"] if sys.platform == "darwin" else ["axeww"]
    command = ["ps", *options, "-o", "pid=,ppid=,stat=,time=,command="]
    listed = subprocess.run(command, capture_output=True, text=True, errors="replace").stdout
    table: dict[int, Process] = {}
    for line in listed.splitlines():
        fields = line.split(None, 4)
        if len(fields) == 5 and fields[0].isdigit() and not fields[2].startswith("Z"):
            table[int(fields[0])] = Process(int(fields[1]), parse_time(fields[3]), fields[4])
    return table


def parse_time(text: str) -> float:
    """Seconds of [DAYS-][HOURS:]MINUTES:SECONDS."""
    days, _, clock = text.rpartition("-")
    seconds = 0.0
    for part in clock.split(":"):
        seconds = 60 * seconds + float(part)
    return seconds + 86400 * int(days or 0)


def with_descendants(pids: Iterable[int], table: dict[int, Process]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, process in table.items():
        children.setdefault(process.parent, []).append(pid)
    found: set[int] = set()
    todo = list(pids)
    while todo:
        pid = todo.pop()
        if pid not in found:
            found.add(pid)
            todo += children.get(pid, [])
    return found


if __name__ == "__main__":
    main()
