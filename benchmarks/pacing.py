"""Contestants that take turns, mostly of half a second, so that other load slows all of them equally.

Each is a separate group of processes. While one works, the others are stopped.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from fedssl.allocator import keep_freed_memory
from fedssl.config import Config, load
from fedssl.experiment import run, with_machine_defaults
from fedssl.listener import Listener, RunInfo

Tick = Callable[[], None]
Play = Callable[[Tick], object]
"""It prepares and ticks, and ticks again after each piece of work, for ever. It must pickle."""

SLICE = 0.5  # seconds of a turn
WARM = 2  # pieces before those that count: the first finds cold caches, and workers that still import


def in_turns(plays: Mapping[str, Play], pieces: int, turn: float | None = SLICE) -> dict[str, list[float]]:
    """Seconds of each piece of work by contestant, after some warm-up pieces.

    A turn of `None` is a piece. That is for contestants of several processes, which wait for each other anew
    whenever they are stopped in the middle of their work.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # so that no process stays stopped
    contestants: dict[str, Contestant] = {}
    try:
        for name, play in plays.items():
            contestants[name] = Contestant(name, play)
        while any(len(contestant.ticks) <= WARM + pieces for contestant in contestants.values()):
            for contestant in contestants.values():
                contestant.turn(turn)
    finally:
        for contestant in contestants.values():
            contestant.end()
    return {name: contestant.pieces()[: WARM + pieces] for name, contestant in contestants.items()}


class Contestant:
    """A process that is stopped except in its turns."""

    def __init__(self, name: str, play: Play) -> None:
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_contestant, args=(play, theirs), name=name)
        self.process.start()
        theirs.close()
        self.ticks: list[float] = []
        self.turns: list[tuple[float, float]] = []
        self._listen()
        self._signal(signal.SIGSTOP)

    def turn(self, seconds: float | None) -> None:
        began = time.monotonic()
        self._signal(signal.SIGCONT)
        if seconds is None:
            self._listen()
        else:
            time.sleep(seconds)
        self._signal(signal.SIGSTOP)
        self.turns.append((began, time.monotonic()))
        while self.pipe.poll():
            self._listen()

    def pieces(self) -> list[float]:
        """The part of the time between two ticks that was in its own turns."""
        turns = np.array(self.turns)
        worked = [np.clip(tick - turns[:, 0], 0, turns[:, 1] - turns[:, 0]).sum() for tick in self.ticks]
        return [float(seconds) for seconds in np.diff(worked)]

    def end(self) -> None:
        self._signal(signal.SIGKILL)
        self.process.join()

    def _listen(self) -> None:
        try:
            self.ticks.append(self.pipe.recv())
        except EOFError:
            raise SystemExit(f"{self.process.name} ended before its turns did") from None

    def _signal(self, number: int) -> None:
        if self.process.pid is not None and self.process.is_alive():
            os.killpg(self.process.pid, number)


def _contestant(play: Play, pipe: Connection) -> None:
    os.setpgrp()
    play(lambda: pipe.send(time.monotonic()))


class _Rounds(Listener):
    """A piece of work is a round; what follows it (a checkpoint) counts for the next one."""

    def __init__(self, tick: Tick) -> None:
        self._tick = tick

    def started(self, info: RunInfo) -> None:
        self._tick()

    def round(self, line: dict[str, Any]) -> None:
        self._tick()


def _run(config: Config, folder: Path, tick: Tick) -> None:
    run(config, folder, _Rounds(tick))


def _repeat(make: Callable[[], Callable[[], object]], kept: bool, tick: Tick) -> None:
    with keep_freed_memory() if kept else nullcontext():
        work = make()
        tick()
        while True:
            work()
            tick()


def repeated(make: Callable[[], Callable[[], object]], kept: bool = True) -> Play:
    """Work that is prepared once and repeated; freed memory is kept, as in a run."""
    return partial(_repeat, make, kept)


def whole_run(config: Config, folder: Path) -> Play:
    """A complete run with its files; a piece is a round."""
    return partial(_run, config, folder)


def ratio(above: list[float], below: list[float]) -> float:
    """The pieces of all turns together."""
    return sum(above[WARM:]) / sum(below[WARM:])


def random_images(folder: Path, count: int, side: int = 32) -> Path:
    """A file of noise to train on, with labels, and a small one to test on: none of `count` is held out."""
    rng, file = np.random.default_rng(0), folder / f"noise-{count}-{side}_train.npz"
    for name, images in ((file.name, count), (file.name.replace("train", "test"), 10)):
        pixels = rng.integers(0, 256, (images, side, side, 3), dtype=np.uint8)
        np.savez(folder / name, x=pixels, y=rng.integers(0, 10, images))
    return file


def config_of(file: Path, **overrides: Any) -> Config:
    """Five clients with equal shares of the file, a ResNet-8, batches of 128; `a__b` stands for `a.b`."""
    settings: dict[str, Any] = {
        "data.name": "npz",
        "data.root": str(file),
        "partition": "iid",
        "partition.clients": 5,
        "model.encoder": "resnet8",
        "model.width": 16,
        "train.batch_size": 128,
        "train.epochs": 1,
        "rounds": 1000,  # the requested number
        "checkpoint.every": 1,
        "probe.every": 0,
        "probe.protocol": "none",
    }
    settings |= {key.replace("__", "."): value for key, value in overrides.items()}
    return with_machine_defaults(load(None, settings))
