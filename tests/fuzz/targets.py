"""All code that reads external input. Bad input must give a clear error and nothing else."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import strategies as st
from PIL import Image

import fedssl
from fedssl import cli, experiment
from fedssl.config import load
from fedssl.data.options import DataConfig
from fedssl.data.sets import load_whole
from fedssl.engines.check import problem_with
from fedssl.engines.flower.messages import read_outcome, read_secure_answer
from fedssl.errors import FedsslError
from fedssl.listener import Listener
from tests.fuzz import inputs
from tests.small import SMALL

SECONDS = 30  # of a core that one input may take
PATIENCE = 10  # times as long by the clock: an endless wait uses no core, and a busy machine is slow
MOST = 1 << 16  # bytes of an upload


class Hang(BaseException):
    """An input that takes too long."""


@contextmanager
def limited(seconds: float = SECONDS) -> Iterator[None]:
    """Context manager that raises after this many seconds of a core, or ten times as many by the clock."""

    def stop(*_: object) -> None:
        raise Hang(f"not done after {seconds} s")

    timers = {signal.ITIMER_PROF: seconds, signal.ITIMER_REAL: PATIENCE * seconds}
    before = {number: signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)}
    for timer, length in timers.items():
        signal.setitimer(timer, length)
    try:
        yield
    finally:
        for timer in timers:
            signal.setitimer(timer, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def refused() -> Iterator[None]:
    """Context manager that accepts errors that users can fix; any other error is a bug."""
    with contextlib.suppress(FedsslError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


# --- configs ----------------------------------------------------------------------------------------


def config_file(given: Any) -> None:
    """A damaged config.toml."""
    with folder() as place, refused():
        file = place / "config.toml"
        file.write_bytes(given[1].encode("latin-1"))
        load(file)


def config_values(given: Any) -> None:
    """Keys with absurd values."""
    with refused():
        load(SMALL, given)


class Started(Exception):
    pass


class StopBeforeTraining(Listener):
    def started(self, info: Any) -> None:
        raise Started


LEFT_OUT = ("data.name", "data.root", "data.split", "model.init", "engine.name", "log.", "model.encoder")


def start(given: Any) -> None:
    """A run with absurd values, up to its first round: loads data, and builds partition and model."""
    with folder() as place, refused(), contextlib.suppress(Started):
        given = {key: value for key, value in given.items() if not key.startswith(LEFT_OUT)}
        config = load({**SMALL, "data": {"name": "digits", "limit": 40}}, given)
        experiment.run(config, place / "run", StopBeforeTraining())


# --- images -----------------------------------------------------------------------------------------


def image(given: Any) -> None:
    """A damaged image beside a good one, in a folder of classes."""
    name, content = given
    with folder() as place, refused():
        for good in ("a", "b"):
            (place / good).mkdir()
            Image.new("RGB", (9, 9)).save(place / good / "good.png")
        (place / "a" / name).write_bytes(content.encode("latin-1"))
        load_whole(DataConfig(name="folder", root=str(place)))


def archive(given: Any) -> None:
    """A damaged .npz file."""
    with folder() as place, refused():
        (place / given[0]).write_bytes(given[1].encode("latin-1"))
        load_whole(DataConfig(name="npz", root=str(place / given[0])))


def manifest(given: Any) -> None:
    """A damaged table of images."""
    name, content = given
    with folder() as place, refused():
        for good in ("a.png", "b.png"):
            Image.new("RGB", (9, 9)).save(place / good)
        (place / name).write_bytes(content.encode("latin-1"))
        load_whole(DataConfig(name="manifest", root=str(place / name)))


# --- messages ---------------------------------------------------------------------------------------


def reply(given: Any) -> None:
    """An answer of a site."""
    text, content = given[0], given[1].encode("latin-1")
    array = Array(dtype="uint8", shape=(len(content),), stype="safetensors", data=content)
    record = RecordDict({"text": ConfigRecord({"json": text}), "tensors": ArrayRecord({"0": array})})
    outcome = read_outcome(record, 0, MOST)
    read_secure_answer(record, 0, MOST)
    if outcome.upload is None:
        assert isinstance(outcome.failure, str)
    else:
        problem_with(outcome.upload, inputs.expected(), 10**6, {"norm.running_var"})


# --- runs -------------------------------------------------------------------------------------------


@cache
def finished() -> Path:
    """A run of two rounds."""
    place = Path(tempfile.mkdtemp(prefix="fedssl-fuzz-"))
    keys = {"rounds": 2, "checkpoint.every": 1, "objective": "byol", "method": "fedema"}
    values = {**SMALL, "data": {"name": "digits", "limit": 40}}
    fedssl.run(values, out=place / "run", quiet=True, **keys)
    return place / "run"


FILES = (
    "config.toml",
    "metrics.jsonl",
    "result.json",
    "partition.json",
    "encoder.json",
    "encoder.safetensors",
    "checkpoints/round-000002.safetensors",
    "checkpoints/clients/1/round-000002.safetensors",
)
COMMANDS = {
    "resume": ["resume", "RUN", "--quiet"],
    "eval": ["eval", "RUN", "--protocol", "knn"],
    "report": ["report", "RUN", "-o", "OUT.html"],
    "export": ["export", "RUN", "--to", "safetensors", "-o", "OUT"],
}


def run_files() -> dict[str, bytes]:
    return {name: (finished() / name).read_bytes() for name in FILES}


def run_folder(given: Any) -> None:
    """A command on a run with a damaged file."""
    command, name, content = given
    with folder() as place:
        run = Path(shutil.copytree(finished(), place / "run"))
        if command == "resume":
            (run / "result.json").unlink()
        (run / name).write_bytes(content.encode("latin-1"))
        places = {"RUN": str(run), "OUT.html": str(place / "out.html"), "OUT": str(place / "out")}
        words = [places.get(word, word) for word in COMMANDS[command]]
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()), refused():
            code = cli.main(words)
        assert code in (0, 1, 2)
        assert "Traceback" not in said.getvalue()
        if command == "resume" and code == 0 and name.startswith(("metrics", "checkpoints")):
            same = (run / "encoder.safetensors").read_bytes() == (
                finished() / "encoder.safetensors"
            ).read_bytes()
            assert same, "another model, in silence"


# --- all --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """Something that reads input.

    Attributes:
        check: raises anything but a FedsslError if it has a bug.
        strategy: makes inputs that JSON can store.
        share: of all examples.
    """

    check: Callable[[Any], None]
    strategy: Callable[[], st.SearchStrategy[Any]]
    share: float


def _latin(pair: tuple[Any, ...]) -> list[Any]:
    return [part.decode("latin-1") if isinstance(part, bytes) else part for part in pair]


def _files(originals: Callable[[], dict[str, bytes]]) -> Callable[[], st.SearchStrategy[Any]]:
    return lambda: inputs.damaged(originals()).map(_latin)


def _runs() -> st.SearchStrategy[Any]:
    damaged = inputs.damaged(run_files()).map(_latin)
    return st.tuples(st.sampled_from(sorted(COMMANDS)), damaged).map(lambda pair: [pair[0], *pair[1]])


TARGETS = {
    "config_file": Target(config_file, _files(inputs.configs), 0.25),
    "config_values": Target(config_values, lambda: inputs.overrides(inputs.keys()), 0.2),
    "start": Target(start, lambda: inputs.extremes(inputs.keys()), 0.08),
    "image": Target(image, _files(inputs.images), 0.2),
    "archive": Target(archive, _files(inputs.archives), 0.1),
    "manifest": Target(manifest, _files(inputs.tables), 0.05),
    "reply": Target(reply, lambda: inputs.replies().map(_latin), 0.1),
    "run_folder": Target(run_folder, _runs, 0.02),
}


def replay(file: Path) -> None:
    """Check an input of the corpus."""
    stored = json.loads(file.read_text())
    with limited():
        TARGETS[stored["target"]].check(stored["input"])
