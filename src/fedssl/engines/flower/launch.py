"""`fedssl server`: starts Flower's SuperLink with secure settings and runs the rounds."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedssl.config import Config, flatten, load
from fedssl.engines.audit_log import AuditLog
from fedssl.engines.flower.engine import SERVER_DEFAULTS, Flower, needs_flower
from fedssl.engines.flower.home import CONNECTION, Home
from fedssl.engines.flower.journal import Output
from fedssl.engines.flower.sites import read_keys, register, watching
from fedssl.engines.wire import MEGABYTE
from fedssl.errors import ConfigError, RunError
from fedssl.privacy.refusals import check_config
from fedssl.rundir import RunDir
from fedssl.storage import write_text, write_toml

APP = Path(__file__).parent / "app"
START = 300.0  # seconds to wait for a SuperLink to start
FREE = 60.0  # seconds to wait for a port that a stopping server may still use
TRIES = 3  # starts of a run that Flower ends although nothing failed

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """Where a server listens, and its folder of `fedssl certs`; None: without TLS (`--insecure`)."""

    host: str
    port: int
    certs: Path | None

    def words(self) -> list[str]:
        place = ["--host", self.host, "--port", str(self.port)]
        if self.certs is None:
            return [*place, "--insecure"]
        files = {
            "--ssl-ca-certfile": existing_file(self.certs / "ca.crt"),
            "--ssl-certfile": existing_file(self.certs / "server.crt"),
            "--ssl-keyfile": private(self.certs / "server.key"),
        }
        named = [word for option, file in files.items() for word in (option, str(file))]
        return [*place, *named, "--enable-supernode-auth"]


@contextmanager
def stop_on_signal(message: str, tell: Tell) -> Iterator[None]:
    """Context manager in which Ctrl-C and SIGTERM (of a service manager) stop Flower's processes in order."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        tell(message)
        raise SystemExit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def existing_file(file: Path) -> Path:
    if not file.exists():
        raise ConfigError(f"no {file}: see `fedssl certs`")
    return file.resolve()


def private(file: Path) -> Path:
    """Raise a ConfigError if others can read a key."""
    mode = existing_file(file).stat().st_mode & 0o777
    if mode & 0o077 and os.name == "posix":
        raise ConfigError(f"others can read {file} (mode {mode:o}): chmod 600 {file}")
    return file.resolve()


def server(
    out: Path,
    values: Mapping[str, Any],
    overrides: Mapping[str, Any],
    place: Place,
    sites: list[str],
    tell: Output,
) -> None:
    """Run all rounds; after a stop, the same command continues from the last round.

    Args:
        out: the run's folder.
        values: the config file.
        overrides: keys from the command line.
        place: where to listen.
        sites: the names of the sites, if there are no keys.
        tell: prints events.
    """
    needs_flower()
    keys = read_keys(place.certs / "sites") if place.certs is not None else {}
    directory = open_run(out, load(values, {**server_defaults(values), **overrides}), list(keys) or sites)
    if directory.result_file.exists():
        tell(f"{out} has finished already")
        return
    home, audit = Home(directory.path / "flower"), AuditLog(directory.path)
    home.connect(f"127.0.0.1:{place.port}", None if place.certs is None else place.certs / "ca.crt")
    with superlink(home, place, directory.config().wire.max_mb * MEGABYTE):
        tell(f"listening on {place.host}:{place.port}")
        register(home, keys, tell, audit)
        folder, known = place.certs and place.certs / "sites", list(keys) or sites
        with watching(folder, known, home, tell, audit) if folder else nullcontext():
            run_to_end(home, directory, tell)


def server_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """A server's defaults for keys that are missing from the config file."""
    sections = {key: key.split(".") for key in SERVER_DEFAULTS}
    return {
        key: SERVER_DEFAULTS[key]
        for key, (section, name) in sections.items()
        if name not in values.get(section, {}) and not isinstance(values.get(section), str)
    }


def open_run(out: Path, config: Config, sites: list[str]) -> RunDir:
    """Create a run, or open an existing one; sites keep their numbers, and new ones get the next."""
    if not isinstance(config.engine, Flower):
        raise ConfigError(f"engine.name={config.engine.name} does not support sites: set engine.name=flower")
    if not sites:
        raise ConfigError("no sites: pass --sites NAME,NAME, or a folder with their keys (--certs)")
    if not (out / "config.toml").exists():
        config = with_sites(config, sites)
        config.engine.federation(config)  # raises before anything is written
        check_config(config)
        return RunDir.create(out, config)
    directory = RunDir.open(out)
    stored = directory.config()
    assert isinstance(stored.engine, Flower)
    numbered = [*stored.engine.sites, *(name for name in sites if name not in stored.engine.sites)]
    if with_sites(config, numbered) != with_sites(stored, numbered):
        raise ConfigError(
            f"{out} holds a run with another config ({differences(stored, config)}): "
            "use the same config, or choose another --out"
        )
    directory.write_config(with_sites(stored, numbered))
    return directory


def differences(stored: Config, given: Config) -> str:
    """The keys that differ, with the value of the run and the given one."""
    old, new = dict(flatten(stored.to_dict())), dict(flatten(given.to_dict()))
    keys = [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]
    shown = [f"{key}: {old.get(key)} → {new.get(key)}" for key in keys if key != "engine.sites"]
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")


def with_sites(config: Config, sites: list[str]) -> Config:
    return config.model_copy(update={"engine": config.engine.model_copy(update={"sites": tuple(sites)})})


@contextmanager
def superlink(home: Home, place: Place, max_bytes: int) -> Iterator[None]:
    """Context manager that runs Flower's SuperLink, which stores sites and runs in a file."""
    wait_until_free(place)
    log = home.folder / "superlink.log"
    database = ("--database", str(home.folder / "superlink.db"), "--disable-runtime-dependency-installation")
    process = home.start("superlink", str(max_bytes), *place.words(), *database, log=log)
    try:
        began = time.monotonic()
        while not answers(place.port):
            if process.poll() is not None or time.monotonic() - began > START:
                raise RunError(f"Flower's SuperLink did not start; the end of {log}: {tail(log)}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_free(place: Place) -> None:
    """Wait for the port, which a server that was just killed may still use."""
    began = time.monotonic()
    while answers(place.port):
        if time.monotonic() - began > FREE:
            raise RunError(f"port {place.port} is taken: choose another --port")
        time.sleep(0.5)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def tail(file: Path) -> str:
    lines = file.read_text(errors="replace").splitlines() if file.exists() else []
    return " / ".join(lines[-3:])


def start(home: Home, directory: RunDir) -> str:
    """Start the run as a Flower app, after stopping that of a killed server; returns its id."""
    memo, settings = home.folder / "run-id", home.folder / "run.toml"
    if memo.exists():
        with suppress(RunError):  # if it has ended by itself
            home.ask("stop", memo.read_text(), CONNECTION)
    write_toml(settings, {"run": str(directory.path.resolve())})
    (home.folder / "error").unlink(missing_ok=True)
    run = str(home.ask("run", str(APP), CONNECTION, "--run-config", str(settings))["run-id"])
    write_text(memo, run)
    return run


def run_to_end(home: Home, directory: RunDir, tell: Output) -> None:
    """Start the run and follow it to its end.

    Processes that a killed server left behind may take up the new run just before they end. Flower then
    reports a failure although nothing in the run failed, and it is started again.
    """
    for _ in range(TRIES):
        status = follow(home, start(home, directory), directory, tell)
        error = home.folder / "error"
        if status is None:
            return
        if error.exists() or not status.endswith("failed"):
            break
        tell("Flower ended the run, which had not failed: it continues from the last round")
    reason = error.read_text() if error.exists() else f"Flower reports {status}"
    raise RunError(f"{reason}; the same command continues from the last round")


def follow(home: Home, run: str, directory: RunDir, tell: Output) -> str | None:
    """Print the run's output until it ends; returns Flower's status if there is no result, else None."""
    shown = 0
    while True:
        stream = home.follow("log", run, CONNECTION, "--stream")
        assert stream.stdout is not None
        try:
            for number, line in enumerate(stream.stdout):
                if number >= shown:
                    tell.line(line)
                    shown = number + 1
        finally:
            stream.kill()
            stream.wait()
        if directory.result_file.exists():
            return None
        status = str(home.ask("list", CONNECTION, "--run-id", run)["runs"][0]["status"])
        if status.startswith("finished"):
            return status
