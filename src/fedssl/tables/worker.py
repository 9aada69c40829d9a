"""A worker process: `python -m fedssl.tables.worker` (see `fedssl.tables.workers`)."""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch

from fedssl.allocator import keep_freed_memory
from fedssl.config import from_values
from fedssl.tables.cells import Cell, folder
from fedssl.tables.runner import single_threaded, try_cell
from fedssl.tables.table import Measure

Tasks = queue.SimpleQueue[dict[str, Any]]


def main() -> None:
    # Answers go to the original standard output; all other output goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    torch.set_num_threads(1)
    tasks: Tasks = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(tasks,), daemon=True).start()
    with keep_freed_memory():
        while True:
            answers.write(json.dumps(work(tasks.get())) + "\n")
            answers.flush()


def work(task: dict[str, Any]) -> dict[str, Any]:
    """Run and measure a cell; the answer has the fields of its outcome."""
    config = from_values(task["config"])
    cell = Cell("", "", config.seed, config, Measure(**task["measure"]), folder(config))
    outcome = try_cell(single_threaded(cell), Path(task["path"]))
    return {
        "number": outcome.number,
        "untrained": outcome.untrained,
        "seconds": outcome.seconds,
        "error": outcome.error,
    }


def _listen(tasks: Tasks) -> None:
    """Queue incoming cells. When the input ends, stop, because nobody reads the answers any more."""
    for line in sys.stdin:
        tasks.put(json.loads(line))
    os._exit(1)


if __name__ == "__main__":
    main()
