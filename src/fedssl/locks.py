"""Locks and scratch folders. The system releases a lock when the process that holds it dies."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from fedssl.errors import RunError

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)  # file systems without locks
PREFIX = "fedssl-scratch-"
TEMPORARY = re.compile(r"\..+\.(\d+)\.tmp")  # files of `storage.write_atomic`, with the writer's process id


@contextmanager
def exclusive(file: Path, what: str) -> Iterator[None]:
    """Context manager that holds a lock. The lock of a process that has died is free.

    Args:
        file: the lock file; it stays when the lock is released.
        what: the locked thing, for the error message.

    Raises:
        RunError: another process holds the lock; names it.
    """
    with _opened(file) as opened:
        if not _lock(opened):
            raise RunError(f"{what} is in use by {_holder(file)}: wait until it is done, or stop it")
        opened.seek(0)
        opened.truncate()
        opened.write(json.dumps({"process": os.getpid(), "machine": socket.gethostname()}))
        opened.flush()
        yield


def _opened(file: Path) -> IO[str]:
    try:
        return open(os.open(file, os.O_RDWR | os.O_CREAT, 0o644), "r+", encoding="utf-8")
    except OSError as error:
        raise RunError(f"cannot write to {file.parent}: {error.strerror}") from error


def _lock(opened: IO[str]) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return True


def _holder(file: Path) -> str:
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
        return f"process {known['process']} on {known['machine']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


class Scratch:
    """A temporary folder. Folders of processes that were killed are removed when the next one is made.

    Args:
        shared_memory: put it into memory, where the system has a folder for that.
    """

    def __init__(self, shared_memory: bool = False) -> None:
        place = Path("/dev/shm")
        root = place if shared_memory and os.access(place, os.W_OK) else Path(tempfile.gettempdir())
        remove_abandoned(root)
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        self._lock = _opened(self.folder / "lock")
        _lock(self._lock)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


def remove_abandoned(root: Path) -> None:
    """Remove this user's scratch folders whose process has died."""
    for lock in root.glob(f"{PREFIX}*/lock"):
        with suppress(OSError):
            if lock.stat().st_uid == os.getuid():
                with open(lock, "r+") as opened:
                    abandoned = _lock(opened)
                if abandoned:
                    shutil.rmtree(lock.parent, ignore_errors=True)


def remove_temporary(folder: Path) -> None:
    """Remove temporary files at any depth below a folder whose writer has died."""
    for file in folder.rglob(".*.tmp"):
        match = TEMPORARY.fullmatch(file.name)
        if match and not _alive(int(match[1])):
            file.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
