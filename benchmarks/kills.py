"""Runs that are killed at random moments end with the bits of runs that were not, metrics included.

For each case a run is trained to its end. Then the same run is started and repeatedly killed with SIGKILL,
each time at a random moment of its start, of a round or between rounds, and finally left to finish. Compared
with the first run are the checkpoints, every client's memory, the exported encoder, and every number in
metrics.jsonl and result.json except times. No temporary file or folder may be left.

    python benchmarks/kills.py [--cases fedema,ditto] [--kills 6] [--seed 0] [--json FILE]

Cases: %s; NAME+workers trains with two worker processes, and kills the main process alone, or with
its workers, or one worker. Runs are forked from a process that has imported PyTorch, so that a start takes a
second. Exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedssl import experiment
from fedssl.config import Config, load
from fedssl.listener import Listener
from fedssl.locks import PREFIX
from fedssl.rundir import RunDir

SMALL: dict[str, Any] = {
    "data": {"name": "digits", "limit": 120},
    "partition": {"scheme": "classes", "clients": 5, "classes": 2},
    "model": {"width": 4, "projector_hidden": 16, "projector_out": 16, "predictor_hidden": 8},
    "train": {"batch_size": 16, "epochs": 1.0},
    "rounds": 40,
    "participation": {"per_round": 3},
    "probe": {"every": 4, "protocol": "none"},
    "checkpoint": {"every": 2},
    "engine": {"threads": 1},
}
GAN: dict[str, Any] = {
    "data.mean": 0.5,
    "data.std": 0.5,
    "data.test_fraction": 0.05,
    "shift.name": "padpaf-mnist",
    "objective": {"name": "gan", "features": 8, "latent": 4, "blocks": 0},
    "method": "padpaf",
    "server": {"optimizer": "adam", "lr": 0.01},
    "train.optimizer": "adam",
    "train.batch_size": 10,
}
CASES: dict[str, dict[str, Any]] = {
    "fedema": {"objective": "byol", "method": "fedema"},
    "fedu": {"objective": "byol", "method": "fedu"},
    "featarc": {"method": "featarc"},
    "ditto": {"method": "ditto"},
    "apfl": {"method": "apfl"},
    "fedstyle": {"method": "fedstyle"},
    "l-dawa": {"objective": "barlow-twins", "aggregation": "l-dawa"},
    "padpaf": GAN,
    "relay": {"objective": "byol", "method": "relay"},
    "moco": {"objective": {"name": "moco-v2", "queue": 32}},
    "private": {
        "privacy.mode": "client",
        "privacy.noise": 0.02,
        "privacy.clip": 0.1,
        "privacy.quantile": 0.5,
        "participation.per_round": 0.6,
    },
}
CLOCKS = {"seconds", "views_per_second", "peak_memory_mb"}
IN_START = 0.2  # share of the kills that come before the run has made a new round


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "") % ", ".join(CASES), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", default=",".join(CASES), help="with workers: NAME+workers")
    parser.add_argument("--kills", type=int, default=6, help="per case")
    parser.add_argument("--rounds", type=int, default=SMALL["rounds"], help="of each run")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--json", type=Path, help="append a line per case to this file")
    options = parser.parse_args()
    results = []
    for case in options.cases.split(","):
        with tempfile.TemporaryDirectory() as folder:
            chance = random.Random(f"{options.seed} {case}")
            results.append(kill_and_compare(case, options, chance, Path(folder)))
        print(row(results[-1]), flush=True)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps({**results[-1], "seed": options.seed}) + "\n")
    sys.exit(any(result["differences"] for result in results))


def row(result: dict[str, Any]) -> str:
    """One line of a Markdown table."""
    moments = ", ".join(f"{count} {name}" for name, count in sorted(result["killed"].items()))
    said = "; ".join(result["differences"][:3]) or "identical"
    return f"| {result['case']} | {sum(result['killed'].values())} | {moments} | {said} |"


def kill_and_compare(
    case: str, options: argparse.Namespace, chance: random.Random, folder: Path
) -> dict[str, Any]:
    name, _, workers = case.partition("+")
    config = load(SMALL, {**CASES[name], "seed": chance.randrange(1000), "rounds": options.rounds})
    whole, killed = folder / "whole", folder / "killed"
    victim = Victim(config, whole)
    victim.finish()
    if workers:
        config = load(config.to_dict(), {"engine.workers": 2, "engine.wave": 1})
    victim, done = Victim(config, killed), Counter[str]()
    for _ in range(options.kills):
        target = chance.choice(["run", "run and workers", "worker"]) if workers else "run"
        in_start = chance.random() < IN_START and target != "worker"
        victim.start()
        if not victim.reach(in_start, chance):
            break
        victim.strike(target, chance)
        done[f"{target} in {'start' if in_start else 'rounds'}"] += 1
    victim.finish()
    found = [*differences(whole, killed), *(f"left behind: {path}" for path in scratch_of(killed))]
    return {"case": case, "killed": done, "differences": found}


class Victim:
    """A run in its own process and session."""

    def __init__(self, config: Config, out: Path) -> None:
        self.config, self.out = config, out
        self.process = 0  # 0: none

    def start(self) -> None:
        """Start the run, or continue a killed one, unless it is running."""
        if self.process:
            return
        sys.stdout.flush()
        self.process = os.fork()
        if self.process:
            return
        try:
            os.setsid()
            if (self.out / "config.toml").exists():
                experiment.resume(self.out, Listener())
            else:
                experiment.run(self.config, self.out, Listener())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def ended(self) -> bool:
        if self.process:
            found, status = os.waitpid(self.process, os.WNOHANG)
            if found:
                self.process = 0
                if status:
                    raise SystemExit(f"{self.out} ended with status {status} although it was not killed")
        return not self.process

    def reach(self, in_start: bool, chance: random.Random) -> bool:
        """Wait for a random moment; returns whether the run is still running."""
        last = self.config.rounds - 1
        rounds = count_lines(self.out) if in_start else count_lines(self.out) + chance.randint(1, 3)
        while count_lines(self.out) < min(rounds, last):
            if self.ended():
                return False
            time.sleep(0.002)
        time.sleep(chance.uniform(0.0, 1.5 if in_start else 0.2))
        return not self.ended()

    def strike(self, target: str, chance: random.Random) -> None:
        if target == "worker":
            workers = list(children(self.process))
            if workers:
                os.kill(chance.choice(workers), signal.SIGKILL)
            return
        if target == "run and workers":
            os.killpg(self.process, signal.SIGKILL)
        else:
            os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        self.process = 0

    def finish(self) -> None:
        """Let the run finish."""
        if not (self.out / "result.json").exists():
            self.start()
        while not self.ended():
            time.sleep(0.01)


def count_lines(run: Path) -> int:
    with suppress(FileNotFoundError):
        return (run / "metrics.jsonl").read_bytes().count(b"\n")
    return 0


def children(process: int) -> Iterator[int]:
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            yield from map(int, file.read_text().split())


def scratch_of(run: Path) -> list[Path]:
    """The scratch folders of a run, by what is written in them for workers."""
    places = [Path("/dev/shm"), Path(tempfile.gettempdir())]
    files = [file for place in places for file in place.glob(f"{PREFIX}*/setup.json")]
    return [file.parent for file in files if str(run.resolve()) in file.read_text()]


# --- comparison -------------------------------------------------------------------------------------


def differences(first: Path, second: Path) -> list[str]:
    """The differences between two finished runs, except times."""
    found = []
    names = {str(file.relative_to(run)) for run in (first, second) for file in run.rglob("*.safetensors")}
    names |= {"encoder.json", "partition.json"}
    for name in sorted(names):
        if contents(first / name) != contents(second / name):
            found.append(name)
    for line, (one, two) in enumerate(zip(*map(metrics, (first, second)), strict=False), 1):
        found += [f"metrics of round {line}: {key}" for key in one | two if one.get(key) != two.get(key)]
    if len(metrics(first)) != len(metrics(second)):
        found.append("number of rounds")
    results = [timeless(RunDir(run).result()) for run in (first, second)]
    found += [f"result: {key}" for key in results[0] if results[0][key] != results[1].get(key)]
    return found + [f"left behind: {file.name}" for file in second.rglob("*.tmp")]


def contents(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


def metrics(run: Path) -> list[dict[str, Any]]:
    return [timeless(line) for line in RunDir(run).metrics()]


def timeless(value: Any) -> Any:
    """Remove times."""
    if isinstance(value, dict):
        return {key: timeless(part) for key, part in value.items() if key not in CLOCKS}
    return [timeless(part) for part in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
