"""A run on a machine that is also doing something else: views per second beside busy processes.

A run with as many threads as there are cores trains on an idle machine, then beside as many endless loops.
A fair share is half of what it reaches idle. Settings are spin counts, how long OpenMP's threads wait before
they sleep, with and without sleeping almost immediately while the machine is busy (fedssl.openmp has the
defaults), compared with PyTorch as it is. Settings and conditions take turns.

    python benchmarks/busy.py [--spins 1000,10000] [--side 32] [--pieces 20] [--turn 1]

Images of 8×8 pixels (--side 8) need loops of microseconds, and lose most where threads wait for each other.
The load average stands beside the ratios: on a machine that others use, too, they say less.
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
from functools import partial
from pathlib import Path
from unittest.mock import patch

from pacing import WARM, Contestant, Play, Tick, config_of, random_images, whole_run
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
    """How long threads spin, and whether they sleep almost immediately on a busy machine."""

    name: str
    spins: int
    adapts: bool

    @property
    def is_default(self) -> bool:
        return self.adapts and self.spins == openmp.SPINS


def with_setting(setting: Setting, play: Play, tick: Tick) -> None:
    """Play with this setting; a spin count other than fedssl's counts as the user's: nothing adapts."""
    openmp.SPINS = setting.spins if setting.adapts else 0
    play(tick)


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
                        contestants[setting, condition] = Contestant(
                            f"{setting.name}, {condition}", partial(with_setting, setting, play)
                        )
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
    parser.add_argument("--side", type=int, default=32, help="pixels")
    parser.add_argument("--pieces", type=int, default=20, help="rounds that count")
    parser.add_argument("--turn", type=float, default=1.0, help="seconds of a turn")
    options = parser.parse_args()
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    settings = [
        Setting(f"spin {spins:,}{', asleep when busy' if adapts else ''}", spins, adapts)
        for spins in map(int, options.spins.split(","))
        for adapts in (True, False)
    ]
    settings.append(Setting("PyTorch as it is", UNBOUNDED, False))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        file = random_images(folder, 512, options.side)

        def run(setting: Setting, condition: str) -> Play:
            keys = {"partition.clients": 2, "train.batch_size": 64, "engine.threads": cores}
            place = folder / re.sub(r"\W+", "-", f"{setting.name}-{condition}")
            return whole_run(config_of(file, **keys), place)

        plays = {setting: {each: run(setting, each) for each in (IDLE, BUSY)} for setting in settings}
        report(ratios(seconds_per_round(plays, options.pieces, options.turn), load))


if __name__ == "__main__":
    main()
