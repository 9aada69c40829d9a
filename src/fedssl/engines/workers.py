"""Clients in worker processes on this machine.

A worker is `python -m fedssl.engines.worker FOLDER DEVICE`: it reads tasks as lines of JSON and answers with
lines of JSON; tensors go through files in a folder that lives in memory where the system has one.
Nothing is pickled, and a script that calls `fedssl.run` needs no `if __name__ == "__main__"`.
"""

from __future__ import annotations

import json
import logging
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedssl.config import Config
from fedssl.data.federation import Federation
from fedssl.data.parts import Parts
from fedssl.engines.device import deal_devices
from fedssl.engines.start import FILE
from fedssl.engines.tasks import Outcome, Question, Task
from fedssl.errors import RunError
from fedssl.locks import Scratch
from fedssl.privacy.secure.server import Answer as SecureAnswer
from fedssl.state import State, Upload
from fedssl.storage import write_json
from fedssl.tensorfile import load_tensors, save_tensors

Answer = dict[str, Any]  # an outcome with its upload in a file
Turn = tuple[int, Task]  # a task and its position among those of the round
log = logging.getLogger(__name__)
GRACE = 10.0  # seconds that a worker may be later than participation.timeout before it is ended


class Workers:
    """A pool of worker processes, each with its own model and the images mapped into memory."""

    def __init__(self, config: Config, federation: Federation, memories: Path, processes: int) -> None:
        self.config, self.memories = config, memories
        self._scratch = Scratch(shared_memory=True)
        self.folder = self._scratch.folder
        write_setup(self.folder, config, federation, memories)
        self.workers = [Worker(self.folder, device) for device in deal_devices(config.device, processes)]
        self._again: set[int] = set()  # positions of tasks of this round that a second worker has

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        written = _Broadcasts(self.folder)
        waiting = deque(sorted(enumerate(tasks), key=lambda each: each[1].turn))
        self._again = set()
        done = dict[int, Answer]()
        yielded = 0
        try:
            self._hand_out(waiting, written)
            while yielded < len(tasks):
                waiting.extendleft(self._collect(done))
                self._hand_out(waiting, written)  # before uploads are read, so that no worker waits for that
                while yielded in done:
                    yield _outcome(done.pop(yielded))
                    yielded += 1
        except GeneratorExit:  # enough uploads without the spare ones, which are not needed any more
            while any(worker.task is not None for worker in self.workers):
                self._collect(done)
            raise
        finally:
            written.remove()

    def ask(self, questions: Sequence[Question]) -> Iterator[SecureAnswer]:
        """Any worker can answer for any client, since clients keep their secrets on disk.

        An exchange is never answered twice: a worker that dies meanwhile costs its client.
        """
        for first in range(0, len(questions), len(self.workers)):
            asked = list(zip(self.workers, questions[first : first + len(self.workers)], strict=False))
            for worker, question in asked:
                worker.ask(question)
            for worker, question in asked:
                yield worker.heard(question)
                if worker.process.poll() is not None:
                    self._replace(worker)

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
        self._scratch.close()

    def _replace(self, dead: Worker) -> None:
        """Start a process in place of one that has ended, on the same device."""
        self.workers[self.workers.index(dead)] = Worker(self.folder, dead.device)

    def _hand_out(self, waiting: deque[Turn], written: _Broadcasts) -> None:
        while waiting and (idle := self._idle_for(waiting[0][1])):
            idle.begin(*waiting.popleft(), written)

    def _idle_for(self, task: Task) -> Worker | None:
        """A worker that can start without more threads than cores, if there is one."""
        running = [worker.task.threads for worker in self.workers if worker.task is not None]
        engine = self.config.engine
        if running and sum(running) + task.threads > engine.workers * engine.threads:
            return None
        return next((worker for worker in self.workers if worker.task is None), None)

    def _collect(self, done: dict[int, Answer]) -> list[Turn]:
        """Wait until a worker answers, dies or times out.

        Returns:
            Tasks whose worker died for the first time: they are run again, with the same result. A task whose
            second worker dies has failed.
        """
        lost: list[Turn] = []
        busy = [worker for worker in self.workers if worker.task is not None]
        ready, _, _ = select.select([worker.answers for worker in busy], [], [], 1.0)
        for worker in busy:
            limit, task = self.config.participation.timeout, worker.task
            if worker.answers in ready:
                position, answer = worker.answer()
                if answer.get("died") and position not in self._again and task is not None:
                    self._again.add(position)
                    log.warning("client %s: %s; it trains again", task.client, answer["failure"])
                    self._replace(worker)
                    lost.append((position, task))
                    continue
            elif limit and worker.seconds() > limit + GRACE:
                position, answer = worker.give_up(f"timed out: no answer after {limit + GRACE:.0f} s")
            else:
                continue
            done[position] = answer
            if worker.process.poll() is not None:
                self._replace(worker)
        return lost


def write_setup(folder: Path, config: Config, federation: Federation, memories: Path) -> None:
    """Write what a worker needs to start. It opens images in a memory-mapped cache itself."""
    images = federation.train
    # So are those of workers that take turns: what they have differs from round to round.
    mapped = bool(federation.turns) or images.x.numel() > config.data.memory_mb * 2**20
    if not mapped:
        np.save(folder / "x.npy", images.x.numpy())
        if images.y is not None:
            np.save(folder / "y.npy", images.y.numpy())
        parts = Parts.of(federation.parts)
        np.savez(folder / "parts.npz", indices=parts.indices, sizes=parts.sizes)
    write_json(
        folder / "setup.json",
        {
            "config": config.to_dict(),
            "memories": str(memories.resolve()),
            "classes": list(images.classes),
            "mirrored": images.mirrored,
            "mapped": mapped,
            "start": str(memories.resolve().parent / FILE),
        },
    )


class Worker:
    """The main process's side of one worker process."""

    def __init__(self, folder: Path, device: str) -> None:
        self.device = device
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fedssl.engines.worker", str(folder), device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.tasks: IO[str] = self.process.stdin
        self.answers: IO[str] = self.process.stdout
        self.task: Task | None = None
        self._position = -1
        self._began = 0.0

    def begin(self, position: int, task: Task, broadcasts: _Broadcasts) -> None:
        self.task, self._position, self._began = task, position, time.monotonic()
        message = {
            "round": task.round,
            "client": task.client,
            "memory_round": task.memory_round,
            "threads": task.threads,
            "models": broadcasts.files(task.broadcast.states),
            "values": task.broadcast.values,
        }
        self._send(message)

    def answer(self) -> tuple[int, Answer]:
        line = self.answers.readline()
        if not line.endswith("\n"):
            code = self.process.wait()
            position, answer = self.give_up(f"its worker process ended (exit code {code})")
            return position, {**answer, "died": True}
        answer = json.loads(line)
        if "error" in answer:
            raise RunError(answer["error"])
        return self._finish(answer)

    def ask(self, question: Question) -> None:
        """Send a question of secure aggregation."""
        asked = {"stage": question.stage, "data": question.data.decode()}
        self._send({"round": question.round, "client": question.client, **asked})

    def heard(self, question: Question) -> SecureAnswer:
        """Read the answer to the question."""
        line = self.answers.readline()
        if not line.endswith("\n"):
            code = self.process.wait()
            return SecureAnswer(question.client, failure=f"its worker process ended (exit code {code})")
        answer = json.loads(line)
        if "error" in answer:
            raise RunError(answer["error"])
        if answer["failure"]:
            return SecureAnswer(question.client, failure=answer["failure"])
        file = Path(answer["file"])
        data = file.read_bytes()
        file.unlink()
        return SecureAnswer(question.client, data)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self.tasks.write(json.dumps(message) + "\n")
            self.tasks.flush()
        except BrokenPipeError:
            pass  # the worker is dead, which reading its answer reports

    def give_up(self, reason: str) -> tuple[int, Answer]:
        self.process.kill()
        self.process.wait()
        assert self.task is not None
        return self._finish({"client": self.task.client, "failure": reason, "seconds": self.seconds()})

    def seconds(self) -> float:
        return time.monotonic() - self._began

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.tasks.close()
        self.answers.close()

    def _finish(self, answer: Answer) -> tuple[int, Answer]:
        self.task = None
        return self._position, answer


class _Broadcasts:
    """Files of models for workers; a model that is sent to several clients is written once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: dict[int, tuple[State, Path]] = {}  # by identity of the model, which is kept alive

    def files(self, models: list[State]) -> list[str]:
        return [str(self._file(model)) for model in models]

    def _file(self, model: State) -> Path:
        if id(model) not in self._written:
            file = self.folder / f"broadcast-{len(self._written)}.safetensors"
            save_tensors(file, model, {}, durable=False, checked=False)
            self._written[id(model)] = (model, file)
        return self._written[id(model)][1]

    def remove(self) -> None:
        for _, file in self._written.values():
            file.unlink(missing_ok=True)


def _outcome(answer: Answer) -> Outcome:
    upload = answer.pop("upload", None)
    answer.pop("died", None)
    outcome = Outcome(**answer)
    if upload is not None:
        file = Path(upload)
        state, numbers = load_tensors(file)
        file.unlink()
        outcome.upload = Upload(state=state, **numbers)
    return outcome
