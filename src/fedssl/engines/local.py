"""All clients on this machine: in this process one after the other, or in worker processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedssl.engines.engine import Engine
from fedssl.engines.runner import ClientRunner
from fedssl.engines.tasks import Outcome, Question, Task
from fedssl.privacy.secure.server import Answer


class Local(Engine):
    """All clients are on this machine, with a server in this process."""


class InProcess:
    """Trains the clients of a round in this process, one after the other."""

    def __init__(self, runner: ClientRunner) -> None:
        self.runner = runner

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        for task in tasks:
            yield self.runner.run(task)

    def ask(self, questions: Sequence[Question]) -> Iterator[Answer]:
        for question in questions:
            yield self.runner.answer(question)

    def close(self) -> None:
        """Nothing to release."""
