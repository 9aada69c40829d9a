"""A run on a machine with other load: views per second next to busy processes.

A run with as many threads as there are cores trains on an idle machine, then next to as many endless loops. A
fair share is half of its speed on the idle machine. Settings are spin counts, which define how long OpenMP's
threads wait before they sleep (fedssl.openmp has the default), compared with PyTorch's default. Settings and
conditions take turns.

    python benchmarks/busy.py [--spins 1000,10000] [--pieces 20] [--turn 1] [--one-thread]

The load average is printed next to the ratios, which mean less on a shared machine.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from pacing import WARM, Contestant, Play, config_of, random_images, whole_run
from ratios import Ratio, report

from fedssl import openmp

UNBOUNDED = 300_000  # the library's default
IDLE, BUSY = "idle", "busy"


@contextmanager
def endless_loops(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that need a core each, stopped until they are released."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        send(loops, signal.SIGSTOP)
        yield loops
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def send(loops: list[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for loop in loops:
        loop.send_signal(number)


@dataclass(frozen=True)
class Setting:
    """A setting: the run's threads, and how long they spin."""

    name: str
    threads: int
    spins: int

    @property
    def is_default(self) -> bool:
        return (self.threads, self.spins) == (os.cpu_count() or 1, openmp.SPINS)


def seconds_per_round(
    plays: Mapping[Setting, Mapping[str, Play]], pieces: int, turn: float
) -> dict[Setting, dict[str, float]]:
    """Mean seconds of a round, by setting and condition."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # so that no process is left over
    contestants: dict[tuple[Setting, str], Contestant] = {}
    with endless_loops(os.cpu_count() or 1) as loops:
        try:
            for setting, runs in plays.items():
                for condition, play in runs.items():
                    with patch.dict(os.environ, {"GOMP_SPINCOUNT": str(setting.spins)}):
                        contestants[setting, condition] = Contestant(f"{setting.name}, {condition}", play)
            while any(len(each.ticks) <= WARM + pieces for each in contestants.values()):
                for (_, condition), contestant in contestants.items():
                    if condition == BUSY:
                        send(loops, signal.SIGCONT)
                    contestant.turn(turn)
                    send(loops, signal.SIGSTOP)
        finally:
            for contestant in contestants.values():
                contestant.end()
    found: dict[Setting, dict[str, float]] = {}
    for (setting, condition), contestant in contestants.items():
        counted = contestant.pieces()[WARM:]
        found.setdefault(setting, {})[condition] = sum(counted) / len(counted)
    return found


def ratios(found: Mapping[Setting, Mapping[str, float]], load: float) -> list[Ratio]:
    """Idle against unbounded spinning; busy against half of the fastest idle speed."""
    unbounded = next(each for each in found if each.spins == UNBOUNDED)
    fastest = min(seconds[IDLE] for seconds in found.values())
    rows = []
    for setting, seconds in found.items():
        default = setting.is_default
        note = f"{1 / seconds[IDLE]:.2f} rounds/s idle, {1 / seconds[BUSY]:.2f} busy; load average {load:.1f}"
        if setting is not unbounded:
            value = found[unbounded][IDLE] / seconds[IDLE]
            rows.append(
                Ratio(
                    f"{setting.name}: idle speed against PyTorch as it is",
                    value,
                    least=0.97 if default else None,
                    note=note,
                )
            )
        rows.append(
            Ratio(
                f"{setting.name}: speed beside busy processes against the fair share",
                2 * fastest / seconds[BUSY],
                least=0.85 if default else None,
                note=note,
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--spins", default=str(openmp.SPINS), help="spin counts, with commas")
    parser.add_argument("--one-thread", action="store_true", help="also a run with a single thread")
    parser.add_argument("--pieces", type=int, default=20, help="rounds that count")
    parser.add_argument("--turn", type=float, default=1.0, help="seconds of a turn")
    options = parser.parse_args()
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    settings = [Setting(f"spin {spins:,}", cores, spins) for spins in map(int, options.spins.split(","))]
    settings.append(Setting("PyTorch as it is", cores, UNBOUNDED))
    if options.one_thread:
        settings.append(Setting("one thread", 1, openmp.SPINS))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        file = random_images(folder, 512)

        def run(setting: Setting, condition: str) -> Play:
            keys = {"partition.clients": 2, "train.batch_size": 64, "engine.threads": setting.threads}
            place = folder / re.sub(r"\W+", "-", f"{setting.name}-{condition}")
            return whole_run(config_of(file, **keys), place)

        plays = {setting: {each: run(setting, each) for each in (IDLE, BUSY)} for setting in settings}
        report(ratios(seconds_per_round(plays, options.pieces, options.turn), load))


if __name__ == "__main__":
    main()
