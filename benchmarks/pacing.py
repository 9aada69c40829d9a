"""Runs that take turns, round by round, so that a machine that slows down slows all of them alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedssl.config import Config, load
from fedssl.experiment import run, settled
from fedssl.report.listener import Listener, RunInfo


class Paced(Listener):
    """A whole run, files and all, that makes its next round when it is called."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._go, self._made = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        threading.Thread(target=self._run, args=(config, folder), daemon=True).start()
        self._wait()

    def __call__(self) -> None:
        """One round; what follows it (a checkpoint) counts as part of the next."""
        self._go.release()
        self._wait()

    def started(self, info: RunInfo) -> None:
        self._pause()

    def round(self, line: dict[str, Any]) -> None:
        self._pause()

    def _run(self, config: Config, folder: Path) -> None:
        try:
            run(config, folder, self)
        except BaseException as error:
            self._error = error
        self._made.release()

    def _pause(self) -> None:
        self._made.release()
        self._go.acquire()

    def _wait(self) -> None:
        self._made.acquire()
        if self._error is not None:
            raise self._error


def in_turns(contestants: Mapping[str, Callable[[], object]], turns: int) -> dict[str, list[float]]:
    """Seconds of each turn of each contestant; the first turn of all is for warming up."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(turns + 1):
        for name, contestant in contestants.items():
            began = time.perf_counter()
            contestant()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def ratio(above: list[float], below: list[float]) -> float:
    """The median over turns."""
    return float(np.median(np.array(above) / np.array(below)))


def random_images(folder: Path, count: int, side: int = 32) -> Path:
    """A file of noise, with labels."""
    rng, file = np.random.default_rng(0), folder / f"noise-{count}-{side}.npz"
    images = rng.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    np.savez(file, x=images, y=rng.integers(0, 10, count))
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
        "rounds": 1000,  # as many as are asked for
        "checkpoint.every": 1,
        "probe.every": 0,
        "probe.protocol": "none",
    }
    settings |= {key.replace("__", "."): value for key, value in overrides.items()}
    return settled(load(None, settings))
