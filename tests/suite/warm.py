"""Worker processes forked from one that has imported PyTorch already.

Most of a short run with `engine.workers` is the start of its workers. Tests let the standard library's
forkserver import what a worker needs once, and fork it for each worker: processes of their own, with no state
that an import would not have left.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["fedssl.engines.worker", "fedssl.api", __name__])


class WarmWorker:
    """What `fedssl.engines.workers` uses of `subprocess.Popen([python, "-m", MODULE, FOLDER, DEVICE])`."""

    def __init__(self, command: list[str], **_: Any) -> None:
        *_, folder, device = command
        tasks, self_tasks = os.pipe()
        self_answers, answers = os.pipe()
        given = folder, device, dict(os.environ), DupFd(tasks), DupFd(answers)
        self.process = CONTEXT.Process(target=run_worker, args=given)
        self.process.start()
        os.close(tasks)
        os.close(answers)
        self.stdin, self.stdout = os.fdopen(self_tasks, "w"), os.fdopen(self_answers)
        self.pid = self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()

    def wait(self) -> int | None:
        self.process.join()
        return self.process.exitcode


def run_worker(folder: str, device: str, environment: dict[str, str], tasks: Any, answers: Any) -> None:
    """The child: its pipes become standard input and output, as those of a new interpreter would be."""
    from fedssl.engines import worker

    os.environ.update(environment)
    for pipe, number in ((tasks, 0), (answers, 1)):
        own = pipe.detach()
        os.dup2(own, number)
        os.close(own)
    sys.stdin = os.fdopen(0)
    worker.main(Path(folder), device)
    os._exit(0)
