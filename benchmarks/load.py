"""Fifty sites over TLS, of which 30 % have a fault in every round, and a server that is killed.

Sites are processes on this machine (see `sites.py`) behind a proxy on the loopback interface. In each round a
random 30 % of them are killed and started again, paused, slowed (each packet, by the proxy), or cut off (by
the proxy) for a random time. The server (`fedssl server`, with Flower's SuperLink) is killed three times and
started again. In the end:

- every site is accounted for in every round: it has contributed, or it is named with the reason;
- the global model, and every number of the server, is that of a run in one process without any fault in
  which the same sites were left out.

    python benchmarks/load.py FOLDER [--sites 50] [--rounds 20] [--minutes 3.5] [--seed 0]

Stops after this many minutes by killing everything, and continues when it is called again. The call that
finishes the run compares the results, and exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from sites import Light, Zygote  # noqa: E402
from tests.engines.flower.processes import Process, Sites, free_port  # noqa: E402

from fedssl import experiment  # noqa: E402
from fedssl.config import load  # noqa: E402
from fedssl.engines.checkpoint import file_of, load_checkpoint  # noqa: E402
from fedssl.listener import Listener  # noqa: E402
from fedssl.rundir import RunDir  # noqa: E402

SHARE = 0.3  # of the sites with a fault in a round
FAULTS = ("kill", "pause", "slow", "cut off")
LONGEST = 20.0  # seconds of a fault
TIMEOUT = 30.0  # seconds in which a site has to answer
KILLS = (0.3, 0.55, 0.8)  # of the server, after these shares of the rounds
KEYS: dict[str, Any] = {"objective": "byol", "method": "fedema"}


def settings(sites: int, rounds: int) -> dict[str, Any]:
    return {
        "data": {"name": "digits", "limit": 10 * sites},
        "partition": {"scheme": "iid", "clients": sites},
        "model": {"width": 4, "projector_hidden": 16, "projector_out": 16, "predictor_hidden": 8},
        "train": {"batch_size": 8, "epochs": 1.0},
        "views": {"flip": 0.0},
        "rounds": rounds,
        "probe": {"every": 0, "protocol": "none"},
        "checkpoint": {"every": 1},
        "engine": {"threads": 1},
        "log": {"tensorboard": False},
    }


class Proxy:
    """Passes bytes between sites and server; each site has its own port, and may be slowed or cut off."""

    def __init__(self, upstream: int, sites: int) -> None:
        self.upstream, self.ports = upstream, [free_port() for _ in range(sites)]
        self.delay, self.cut = [0.0] * sites, [False] * sites
        threading.Thread(target=lambda: asyncio.run(self._listen()), daemon=True).start()

    async def _listen(self) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        for site, port in enumerate(self.ports):
            await asyncio.start_server(lambda r, w, site=site: self._meet(site, r, w), "127.0.0.1", port)
        await asyncio.Event().wait()

    async def _meet(self, site: int, reader: Any, writer: Any) -> None:
        try:
            server = await asyncio.open_connection("127.0.0.1", self.upstream)
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            self._pass(site, reader, server[1]), self._pass(site, server[0], writer), return_exceptions=True
        )

    async def _pass(self, site: int, reader: Any, writer: Any) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await asyncio.sleep(self.delay[site])
                while self.cut[site]:
                    await asyncio.sleep(0.2)
                writer.write(data)
                await writer.drain()
        writer.close()


class Federation:
    """Server, sites and proxy, with their current faults."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.chance = options, random.Random(f"{options.seed} {time.time_ns()}")
        self.folder: Path = options.folder
        self.zygote = Zygote()
        values = settings(options.sites, options.rounds)
        new = not (self.folder / "keys").exists()
        self.place = Sites(self.folder, load(values)) if new else known(self.folder, options.sites)
        if new:
            limits = {
                "participation.timeout": TIMEOUT,
                "participation.min_clients": max(1, options.sites // 3),
            }
            self.place.configure(values, **KEYS, **limits, **{"engine.patience": 60.0})
        self.proxy = Proxy(self.place.port, options.sites)
        self.server: Process | None = None
        self.running: dict[int, int] = {}
        self.until: dict[int, tuple[float, str]] = {}  # by site: when its fault ends, and which one it is

    def site(self, number: int) -> Light:
        name = self.place.names[number]
        state = self.folder / "state" / name
        state.mkdir(parents=True, exist_ok=True)
        certs, log = self.folder / "keys" / name, self.folder / f"{name}.log"
        port, data = self.proxy.ports[number], self.place.images[number]
        return Light(name, port, str(certs), str(data), str(state), str(log))

    def run(self) -> None:
        """Run until the federation has finished or the time is over; then kill everything."""
        end, seen = time.monotonic() + 60 * self.options.minutes, -1
        try:
            self.start_server()
            for number in range(self.options.sites):
                self.running[number] = self.zygote.start(self.site(number))
            while time.monotonic() < end and not self.finished():
                rounds = self.place.rounds()
                if rounds > seen and rounds:
                    self.trouble(rounds)
                    self.maybe_kill_server(rounds, seen)
                seen = rounds
                self.relieve()
                if self.server is not None and self.server.popen.poll() is not None and not self.finished():
                    self.note("the server ended", said=self.server.said()[-500:])
                    time.sleep(2)
                    self.start_server()
                time.sleep(0.2)
        finally:
            if not self.finished():
                self.note("power failure")
            if self.server is not None:
                self.server.kill_parent() if not self.finished() else self.server.popen.wait(60)
            self.zygote.close()
            self.place.close()

    def finished(self) -> bool:
        return (self.place.run / "result.json").exists()

    def start_server(self) -> None:
        self.server = self.place.server()

    def maybe_kill_server(self, rounds: int, seen: int) -> None:
        for share in KILLS:
            if seen < round(share * self.options.rounds) <= rounds and seen >= 0:
                time.sleep(self.chance.uniform(0.0, 10.0))
                if self.server is not None and not self.finished():
                    self.server.kill_parent()
                    self.note("server killed", round=self.place.rounds())
                    self.start_server()

    def trouble(self, rounds: int) -> None:
        """Choose sites and their faults for a new round."""
        well = [site for site in range(self.options.sites) if site not in self.until]
        hit = self.chance.sample(well, min(len(well), round(SHARE * self.options.sites)))
        for site in hit:
            fault, seconds = self.chance.choice(FAULTS), self.chance.uniform(1.0, LONGEST)
            self.until[site] = (time.monotonic() + seconds, fault)
            self.note(fault, site=site, round=rounds + 1, seconds=round(seconds, 1))
            with suppress(ProcessLookupError):
                if fault == "kill":
                    os.kill(self.running[site], signal.SIGKILL)
                elif fault == "pause":
                    os.kill(self.running[site], signal.SIGSTOP)
            if fault == "slow":
                self.proxy.delay[site] = self.chance.uniform(0.2, 2.0)
            self.proxy.cut[site] = fault == "cut off"

    def relieve(self) -> None:
        """End faults whose time is over."""
        for site, (end, fault) in list(self.until.items()):
            if time.monotonic() < end:
                continue
            del self.until[site]
            self.proxy.delay[site], self.proxy.cut[site] = 0.0, False
            if fault == "kill":
                self.running[site] = self.zygote.start(self.site(site))
            elif fault == "pause":
                with suppress(ProcessLookupError):
                    os.kill(self.running[site], signal.SIGCONT)

    def note(self, what: str, **values: Any) -> None:
        with (self.folder / "events.jsonl").open("a") as file:
            file.write(json.dumps({"event": what, "at": time.strftime("%H:%M:%S"), **values}) + "\n")


def known(folder: Path, sites: int) -> Sites:
    """Continue the federation of an earlier call, on another port."""
    found = Sites.__new__(Sites)
    found.folder, found.port, found.run = folder, free_port(), folder / "run"
    found.names = [f"site-{number}" for number in range(sites)]
    found.images = [folder / "data" / name for name in found.names]
    found.recorder, found.processes = None, []
    return found


# --- afterwards -------------------------------------------------------------------------------------


def compare(options: argparse.Namespace) -> list[str]:
    """Problems of a finished run; prints a summary of it."""
    run = RunDir(options.folder / "run")
    lines, problems = run.metrics(), []
    events = [json.loads(line) for line in (options.folder / "events.jsonl").read_text().splitlines()]
    reasons = Counter[str]()
    for line in lines:
        named = [*line["failed"], *line.get("absent", [])]
        reasons.update(" ".join(each["reason"].split())[:70] for each in named)
        accounted = sorted(each["client"] for each in [*line["clients"], *named])
        if accounted != list(range(options.sites)):
            problems.append(f"round {line['round']}: sites {accounted} are accounted for")
    there = [len(line["clients"]) for line in lines]
    print(f"rounds: {len(lines)}; sites that contributed: {min(there)} to {max(there)} of {options.sites}")
    print("events:", dict(Counter(event["event"] for event in events)))
    for reason, count in reasons.most_common():
        print(f"{count:5} × {reason}")
    problems += differences(options, run)
    print("amiss:", problems or "nothing")
    return problems


def differences(options: argparse.Namespace, run: RunDir) -> list[str]:
    """The differences from a run in one process without faults, in which the same sites were left out."""
    replay = {"engine.name": "tests.engines.flower.processes:Replay", "engine.seen": str(run.metrics_file)}
    out = options.folder / "replayed"
    config = load(
        settings(options.sites, options.rounds), {**KEYS, "participation.max_change": 10.0, **replay}
    )
    if not (out / "result.json").exists():
        experiment.run(config, out, Listener())
    found = [
        load_checkpoint(file_of(folder / "checkpoints", options.rounds), options.rounds).server
        for folder in (run.path, out)
    ]
    different = [
        f"{name} differs"
        for name, value in found[0].model.items()
        if not torch.equal(value, found[1].model[name])
    ]
    encoders = [(folder / "encoder.safetensors").read_bytes() for folder in (run.path, out)]
    return different + ([] if encoders[0] == encoders[1] else ["the exported encoder differs"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sites", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=3.5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    federation = Federation(options)
    if not federation.finished():
        federation.run()
    else:
        federation.zygote.close()
    if federation.finished():
        sys.exit(bool(compare(options)))
    print(f"{federation.place.rounds()} of {options.rounds} rounds: call again")


if __name__ == "__main__":
    main()
