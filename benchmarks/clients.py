"""Ten clients per round out of 10, 100, 1,000 or 10,000, all with a memory on disk (FedEMA, BYOL).

In a first process all clients take part in one round, so that all have a memory. A second process continues
the run with ten clients per round. Measured are its start-up, the time of its rounds, its peak memory, and
the disk space of the memories. Every client has 8 images of 8×8 pixels.

    python benchmarks/clients.py [--clients 10,100,1000,10000] [--rounds 20] [--width 8]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from pacing import config_of, random_images
from ratios import Ratio, report

from fedssl.experiment import peak_memory_mb, resume, run
from fedssl.listener import Listener, RunInfo
from fedssl.rundir import RunDir
from fedssl.storage import write_toml

IMAGES = 8


class Timed(Listener):
    """The time when the first round could start, and the time of each round."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.ready = 0.0
        self.rounds: list[float] = []

    def started(self, info: RunInfo) -> None:
        self.ready = time.perf_counter() - self.began

    def round(self, line: dict[str, Any]) -> None:
        self.rounds.append(line["seconds"])


def everyone_once(options: argparse.Namespace, clients: int, folder: Path) -> None:
    file = random_images(folder, clients * IMAGES, side=8)
    config = config_of(
        file,
        partition__clients=clients,
        model__width=options.width,
        objective="byol",
        method="fedema",
        rounds=1,
        train__batch_size=IMAGES,
        checkpoint__keep=1,
    )
    run(config, folder / "run", Listener())


def go_on(folder: Path, rounds: int) -> None:
    """Resume with ten clients per round, and print the measurements."""
    (folder / "result.json").unlink()
    forget_details(folder / "metrics.jsonl")
    settings = tomllib.loads((folder / "config.toml").read_text())
    settings["rounds"], settings["participation"]["per_round"] = 1 + rounds, 10
    write_toml(folder / "config.toml", settings)
    timed = Timed()
    resume(folder, timed)
    found = {"ready": timed.ready, "round": statistics.median(timed.rounds), "memory": peak_memory_mb()}
    print(json.dumps(found))


def forget_details(log: Path) -> None:
    """Remove the clients from the first line of the log, because rounds of ten have no such line."""
    (line,) = map(json.loads, log.read_text().splitlines())
    log.write_text(json.dumps({**line, "clients": line["clients"][:10]}) + "\n")


def measure(options: argparse.Namespace, clients: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        arguments = [sys.executable, __file__, "--rounds", str(options.rounds), "--width", str(options.width)]
        subprocess.run([*arguments, "--first", str(clients), temporary], check=True)
        answer = subprocess.run(
            [*arguments, "--second", temporary], check=True, stdout=subprocess.PIPE, text=True
        )
        found: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
        files = [file.stat().st_size for file in RunDir(folder / "run").memories.rglob("*.safetensors")]
    return found | {"disk": sum(files) / statistics.median(files) / clients}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", default="10,100,1000,10000")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--first", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--second", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.first:
        everyone_once(options, int(options.first[0]), Path(options.first[1]))
    elif options.second:
        go_on(Path(options.second) / "run", options.rounds)
    else:
        compare({int(word): measure(options, int(word)) for word in options.clients.split(",")})


def compare(found: dict[int, dict[str, float]]) -> None:
    """All against the fewest clients."""
    fewest, least = next(iter(found.items()))
    ratios = []
    for clients, here in list(found.items())[1:]:
        against = f"{clients:,} clients against {fewest}"
        more = (here["ready"] - least["ready"]) / (clients - fewest) * 1000
        times, peaks = here["round"] / least["round"], here["memory"] / least["memory"]
        note = f"{here['round']:.3f} and {least['round']:.3f} s"
        ratios.append(Ratio(f"a round of ten, {against}", times, most=1.2, note=note))
        note = f"{here['memory']:.0f} and {least['memory']:.0f} MB"
        ratios.append(Ratio(f"peak memory, {against}", peaks, most=1.2, note=note))
        note = f"{here['ready']:.2f} and {least['ready']:.2f} s"
        ratios.append(Ratio(f"start-up, {against}", more, "ms a client", most=1.0, note=note))
        ratios.append(Ratio(f"disk, {clients:,} clients", here["disk"], "states a client", most=1.01))
    report(ratios)


if __name__ == "__main__":
    main()
