"""A whole federated run of SimCLR against the same in other frameworks: views/s, and time to round 1.

    python benchmarks/peers.py [--encoder resnet8] [--width 16] [--clients 5] [--images 3200] [--batch 128]
                               [--rounds 3] [--repeat 2] [--peers flower,pfl]
                               [--flower 1:0:quickstart,1:0,2:0] [--workers 1] [--set train.compile=true]

All train the same network from the same weights on as many views with the same SGD, and average:

- `fedssl` with everything switched on: views, checkpoints in every round, logging.
- `flower`, Flower's simulation (FedAvg, Ray) with Lightly's SimCLR transform and loss: see peer_flower.py.
- `pfl`, pfl-research in one process on ready-made views in memory: see peer_pfl.py. It is left out if it is
  not installed.

fedssl and pfl-research take turns of half a second (see pacing.py). Flower's processes cannot be stopped this
way, so whole runs take turns, each in a separate process. The time of the first round is measured from the
start of Python, the speed over all later rounds. The best of all turns counts, separately for the first round
and the speed, because other load only makes a run slower.

`--flower` lists settings of that peer as CLIENTS:LOADERS: the number of clients that Ray trains at once,
which share the cores, and of DataLoader workers of each (0: views are made in the training process). 1:0 is
the default of a simulation on two cores; of 1:2, 2:0 and 2:2 the second was the fastest. `1:0:quickstart` is
written like the two projects' quickstarts, the others are tuned. Each setting has its own row; the goal is
for those with one client at a time. `--workers` lists numbers of fedssl's worker processes, of which the best
counts; `--set` changes its keys.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ratios import Ratio, report

NEEDS = {
    "flower": (("flwr", "ray", "lightly"), "pip install 'fedssl[flower]' lightly"),
    "pfl": (
        ("pfl",),
        "pip install --no-deps --target FOLDER pfl 'dp-accounting<0.6' prv-accountant; PYTHONPATH=FOLDER",
    ),
}
SPEED = {"resnet8": 2.5, "resnet18": 1.25}  # goals against Flower
FIRST_ROUND, READY_MADE = 3.0, 0.95
# No process may wait for a network or join a running Ray cluster.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": ""}


def prepare(options: argparse.Namespace, folder: Path) -> None:
    """The images, network and config that all start from, and the config's numbers for the peers."""
    import numpy as np
    import torch

    from fedssl.config import load, parse_overrides
    from fedssl.engines.network import build_network
    from fedssl.storage import write_toml

    shape = (options.images, 32, 32, 3)
    np.savez(folder / "images.npz", x=np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
    config = load(
        None,
        {
            "data.name": "npz",
            "data.root": str(folder / "images.npz"),
            "partition": "iid",
            "partition.clients": options.clients,
            "model.encoder": options.encoder,
            "model.width": options.width,
            "objective": "simclr",
            "train.batch_size": options.batch,
            "train.schedule": "constant",
            "rounds": options.rounds,
            "checkpoint.every": 1,
            **parse_overrides(options.set),
        },
    )
    write_toml(folder / "config.toml", config.to_dict())
    # As a file that only loads the network's own modules, so that peers do not import all of fedssl.
    torch.save(build_network(config, (32, 32), 3, 0).model, folder / "model.pt")
    work = {
        "folder": str(folder),
        **{key: getattr(options, key) for key in ("clients", "images", "batch", "rounds")},
        **{key: getattr(config.train, key) for key in ("lr", "momentum", "weight_decay")},
        "epochs": int(config.train.epochs),
        "temperature": config.objective.model_dump()["temperature"],
        "mean": config.data.mean,
        "std": config.data.std,
    }
    (folder / "work.json").write_text(json.dumps(work), encoding="utf-8")


def work_of(folder: Path) -> dict[str, Any]:
    work: dict[str, Any] = json.loads((folder / "work.json").read_text(encoding="utf-8"))
    return work


def fedssl_run(folder: Path, workers: int) -> list[tuple[float, int, float]]:
    """When each round ended, its views, and their loss."""
    from fedssl.config import load
    from fedssl.experiment import run
    from fedssl.listener import Listener

    rounds: list[tuple[float, int, float]] = []

    class Watch(Listener):
        def round(self, line: dict[str, Any]) -> None:
            rounds.append((time.time(), line["views"], line["loss"]))

    with tempfile.TemporaryDirectory() as out:
        config = load(folder / "config.toml", {"engine.workers": workers})
        run(config, Path(out) / "run", Watch())
    return rounds


def child(name: str, folder: Path) -> None:
    """The work of a separate process. It imports only what it needs, because imports count in its time."""
    head, *setting = name.split()
    if head == "fedssl":
        rounds = fedssl_run(folder, int(setting[0]))
    else:
        from peer_flower import simulate

        work = work_of(folder)
        work["quickstart"] = "quickstart" in setting
        work["at_once"], work["loaders"] = map(int, setting[0].split(":"))
        rounds = simulate(work)
    print(json.dumps(rounds), flush=True)


class Pace(NamedTuple):
    """The measurements of a process."""

    first: float  # seconds until the end of round 1
    speed: float  # views per second afterwards
    views: int
    loss: float  # of the last round


def start(name: str, folder: Path) -> Pace:
    command = [sys.executable, __file__, "--child", name, "--folder", str(folder)]
    environment = {**os.environ, **QUIET, "FLWR_HOME": str(folder / "flwr")}
    began = time.time()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    rounds = json.loads(done.stdout.splitlines()[-1])
    (first, *_), (last, _, loss) = rounds[0], rounds[-1]
    views = sum(views for _, views, _ in rounds[1:])
    return Pace(first - began, views / (last - first), views, loss)


def take_turns(names: list[str], repeat: int, folder: Path) -> dict[str, Pace]:
    """The best turn of each framework and setting; for fedssl, the best over its settings."""
    best: dict[str, Pace] = {}
    for _ in range(repeat):
        for name in names:
            pace = start(name, folder)
            print(
                f"{name:<12} round 1 after {pace.first:6.1f} s   {pace.speed:8,.0f} views/s"
                f"   loss {pace.loss:.3f}",
                flush=True,
            )
            key = "fedssl" if name.startswith("fedssl") else name
            so_far = best.setdefault(key, pace)
            if pace.views != best["fedssl"].views:
                sys.exit(
                    f"{name} made {pace.views} views, and fedssl {best['fedssl'].views}: not the same work"
                )
            best[key] = pace._replace(
                first=min(pace.first, so_far.first), speed=max(pace.speed, so_far.speed)
            )
    return best


def ratios(best: dict[str, Pace], what: str, encoder: str) -> list[Ratio]:
    """Goals are for a peer's default: with Flower, one client at a time."""
    own, found = best["fedssl"], []
    flowers = [name for name in best if name.startswith("flower")]
    plain = [name for name in flowers if name.startswith("flower 1:0")]
    goals = dict.fromkeys(plain, SPEED.get(encoder))
    for name, pace in best.items():
        if name != "fedssl":
            note = f"{own.speed:,.0f} and {pace.speed:,.0f} views/s"
            words = f"views/s against Lightly in {name}, {what}"
            found.append(Ratio(words, own.speed / pace.speed, least=goals.get(name), note=note))
    for name in flowers:
        note = f"{own.first:.1f} and {best[name].first:.1f} s from the start of Python"
        goal = FIRST_ROUND if name in plain else None
        words = f"time to round 1: Lightly in {name} against ours, {what}"
        found.append(Ratio(words, best[name].first / own.first, least=goal, note=note))
    return found


def against_pfl(options: argparse.Namespace, folder: Path, what: str) -> Ratio:
    from pacing import in_turns, ratio, whole_run

    from fedssl.config import load
    from fedssl.experiment import with_machine_defaults

    ours = with_machine_defaults(load(folder / "config.toml", {"rounds": 1000}))  # as many as are asked for
    work = work_of(folder)
    plays = {"fedssl": whole_run(ours, folder / "paced"), "pfl": partial(pfl_rounds, work)}
    seconds = in_turns(plays, options.rounds)
    views = 2 * work["images"] * work["epochs"]
    speed = {name: views / min(pieces) for name, pieces in seconds.items()}
    return Ratio(
        f"views/s against pfl-research on ready-made views, {what}",
        ratio(seconds["pfl"], seconds["fedssl"]),
        least=READY_MADE,
        note=f"{speed['fedssl']:,.0f} and {speed['pfl']:,.0f} views/s",
    )


def pfl_rounds(work: dict[str, Any], tick: Callable[[], None]) -> None:
    import multiprocessing

    multiprocessing.current_process().name = "MainProcess"  # pfl assumes that any other is a DataLoader's
    from peer_pfl import simulate

    simulate(work, tick)


def installed(peers: list[str]) -> list[str]:
    """The peers that are installed; prints how to install the others."""
    found = []
    for peer in peers:
        packages, remedy = NEEDS[peer]
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        if missing:
            print(f"without {peer}: no {' and no '.join(missing)} ({remedy})")
        else:
            found.append(peer)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encoder", default="resnet8")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--images", type=int, default=3200)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--peers", default="flower,pfl")
    parser.add_argument("--flower", default="1:0:quickstart,1:0,2:0", help="settings of that peer")
    parser.add_argument("--workers", default="1", help="worker processes of fedssl")
    parser.add_argument("--set", nargs="*", default=[], help="keys of fedssl, as KEY=VALUE")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.folder)
        return
    peers = options.peers.split(",")
    if unknown := set(peers) - set(NEEDS):
        parser.error(f"no peer {', '.join(sorted(unknown))}: there are {', '.join(NEEDS)}")
    if options.images % options.clients or options.images // options.clients < options.batch:
        parser.error(f"{options.clients} clients must share --images evenly, each with at least a batch")
    if options.rounds < 2 or options.repeat < 1:
        parser.error("at least two rounds (the first is start-up), and at least one turn")
    found = installed(peers)
    names = [f"fedssl {workers}" for workers in options.workers.split(",")]
    names += [
        "flower " + setting.replace(":quickstart", " quickstart") for setting in options.flower.split(",")
    ]
    ours = f", ours with {' '.join(options.set)}" if options.set else ""
    workers = "" if options.workers == "1" else f", ours with {options.workers} workers"
    what = f"{options.encoder} width {options.width}, {options.clients} clients{ours}{workers}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        prepare(options, folder)
        if "flower" in found:
            report(ratios(take_turns(names, options.repeat, folder), what, options.encoder))
        if "pfl" in found:
            report([against_pfl(options, folder, what)])


if __name__ == "__main__":
    main()
