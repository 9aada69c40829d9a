"""A worker process: `python -m fedssl.engines.worker FOLDER DEVICE` (see `fedssl.engines.workers`)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedssl.allocator import keep_freed_memory
from fedssl.config import from_values
from fedssl.data.federation import Federation, federate
from fedssl.data.images import ImageSet
from fedssl.data.parts import Parts
from fedssl.engines.live import LiveRun
from fedssl.engines.runner import ClientRunner
from fedssl.engines.tasks import Outcome, Question, Task
from fedssl.errors import FedsslError
from fedssl.openmp import sleep_when_busy
from fedssl.state import Broadcast
from fedssl.tensorfile import load_tensors, save_tensors


def main(folder: Path, device: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process, which ends its workers
    # Answers go to the original standard output; whatever else prints goes to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        runner = set_up(folder, device)
    except FileNotFoundError:
        if folder.exists():
            raise
        return  # the main process was killed, and the next one has removed what it had left
    with keep_freed_memory(), sleep_when_busy():
        for line in sys.stdin:
            try:
                answer = work(runner, json.loads(line), folder)
            except FedsslError as error:
                answer = {"error": str(error)}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    shutil.rmtree(folder, ignore_errors=True)  # the main process was killed: it ends workers otherwise


def set_up(folder: Path, device: str) -> ClientRunner:
    setup = json.loads((folder / "setup.json").read_text())
    config = from_values(setup["config"])
    config = config.model_copy(update={"device": device or config.device})
    torch.set_num_threads(config.engine.threads)
    federation = federate(config) if setup["mapped"] else _copy(folder, setup)
    memories = config.engine.memories(Path(setup["memories"]))
    return LiveRun(config, federation, memories, start=Path(setup["start"])).runner


def _copy(folder: Path, setup: dict[str, Any]) -> Federation:
    """Load the images that the main process wrote for its workers."""
    images = ImageSet(
        x=_map(folder / "x.npy"),
        y=_map(folder / "y.npy") if (folder / "y.npy").exists() else None,
        classes=tuple(setup["classes"]),
        mirrored=setup["mirrored"],
    )
    with np.load(folder / "parts.npz") as stored:
        parts = Parts(stored["indices"], stored["sizes"])
    return Federation(images, None, parts, np.empty(0, dtype=np.int64))


def work(runner: ClientRunner, message: dict[str, Any], folder: Path) -> dict[str, Any]:
    if "stage" in message:
        return _exchange(runner, message, folder)
    models = [load_tensors(Path(file))[0] for file in message["models"]]
    task = Task(
        message["round"],
        message["client"],
        Broadcast.from_states(models, message["values"]),
        message["memory_round"],
        threads=message["threads"],
    )
    return _as_answer(runner.run(task), folder)


def _exchange(runner: ClientRunner, message: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Answer for a client in secure aggregation."""
    data = message["data"].encode()
    answer = runner.answer(Question(message["round"], message["client"], message["stage"], data))
    file = folder / f"answer-{answer.client}"
    file.write_bytes(answer.data)
    return {"failure": answer.failure, "file": str(file)}


def _as_answer(outcome: Outcome, folder: Path) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "client": outcome.client,
        "failure": outcome.failure,
        "views": outcome.views,
        "seconds": outcome.seconds,
        "remembers": outcome.remembers,
    }
    if outcome.upload is not None:
        upload = outcome.upload
        file = folder / f"upload-{upload.client}.safetensors"
        numbers = {
            "client": upload.client,
            "num_samples": upload.num_samples,
            "loss": upload.loss,
            "values": upload.values,
        }
        save_tensors(file, upload.state, numbers, durable=False, checked=False)
        answer["upload"] = str(file)
    return answer


def _map(file: Path) -> torch.Tensor:
    # Mode "c": PyTorch wants a writable array; what is written stays in this process.
    return torch.from_numpy(np.load(file, mmap_mode="c"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
