"""`fedssl server` and `fedssl client`: Flower's processes started the safe way, and watched."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import threading
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
from fedssl.storage import private_folder, write_text, write_toml

APP = Path(__file__).parent / "app"
START = 300.0  # seconds that a SuperLink may take to start
FREE = 60.0  # seconds that a port may be taken by a server that is about to end
TRIES = 3  # times that a run is begun which Flower ends though nothing in it failed
CONNECTED = "SuperNode ID:"  # what Flower's log says of a site that the server has accepted
LONGEST_LOG = 10 << 20  # bytes of Flower's log at a site; then it starts again
LOOK = 0.3  # seconds between two looks at it
RETRY = (5.0, 60.0)  # seconds before a client tries again: first, and at most

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """Where a server listens, and what it trusts: a folder of `fedssl certs`, or nothing (`--insecure`)."""

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
def stop_on_signal(said: str, tell: Tell) -> Iterator[None]:
    """Ctrl-C, and the SIGTERM of a service manager, end Flower's processes in order."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        tell(said)
        raise SystemExit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def existing_file(file: Path) -> Path:
    if not file.exists():
        raise ConfigError(f"no {file}: see `fedssl certs`")
    return file.resolve()


def private(file: Path) -> Path:
    """A key that nobody else can read, or an error."""
    mode = existing_file(file).stat().st_mode & 0o777
    if mode & 0o077 and os.name == "posix":
        raise ConfigError(f"others can read {file} (mode {mode:o}): chmod 600 {file}")
    return file.resolve()


# --- server ---------------------------------------------------------------------------------------


def server(
    out: Path,
    values: Mapping[str, Any],
    overrides: Mapping[str, Any],
    place: Place,
    sites: list[str],
    tell: Output,
) -> None:
    """Run until the run is complete; after a stop, the same command goes on where it was."""
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
    """A server's defaults, for keys that the config file does not have."""
    sections = {key: key.split(".") for key in SERVER_DEFAULTS}
    return {
        key: SERVER_DEFAULTS[key]
        for key, (section, name) in sections.items()
        if name not in values.get(section, {}) and not isinstance(values.get(section), str)
    }


def open_run(out: Path, config: Config, sites: list[str]) -> RunDir:
    """A new run, or the one that is there; sites keep their numbers, new ones get the next."""
    if not isinstance(config.engine, Flower):
        raise ConfigError(f"engine.name={config.engine.name} has no sites: leave it out, or say flower")
    if not sites:
        raise ConfigError("no sites: give --sites NAME,NAME (or a folder with their keys, --certs)")
    if not (out / "config.toml").exists():
        config = with_sites(config, sites)
        config.engine.federation(config)  # what is wrong shows before anything is begun
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
    """The keys that differ, with the value of the run and the one that was given."""
    old, new = dict(flatten(stored.to_dict())), dict(flatten(given.to_dict()))
    keys = [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]
    shown = [f"{key}: {old.get(key)} → {new.get(key)}" for key in keys if key != "engine.sites"]
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")


def with_sites(config: Config, sites: list[str]) -> Config:
    return config.model_copy(update={"engine": config.engine.model_copy(update={"sites": tuple(sites)})})


@contextmanager
def superlink(home: Home, place: Place, max_bytes: int) -> Iterator[None]:
    """Flower's SuperLink, which remembers sites and runs in a file."""
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
    """A server that was killed a moment ago may still hold the port."""
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
    """Begin the run as a Flower app; one of a server that was killed is ended first."""
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
    """Begin the run and follow it to its end.

    What a killed server leaves behind may take up the new run just before it ends, too, and then Flower calls
    the run failed though nothing in it did: it is begun again.
    """
    for _ in range(TRIES):
        status = follow(home, start(home, directory), directory, tell)
        error = home.folder / "error"
        if status is None:
            return
        if error.exists() or not status.endswith("failed"):
            break
        tell("Flower ended the run, which had not failed: it goes on from the last round")
    said = error.read_text() if error.exists() else f"Flower says {status}"
    raise RunError(f"{said}; the same command goes on from the last round")


def follow(home: Home, run: str, directory: RunDir, tell: Output) -> str | None:
    """Show what the run says until it has ended; how Flower calls that, if there is no result."""
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


# --- client ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Site:
    """A site as `fedssl client` is told of it."""

    server: str
    data: Path
    state: Path
    certs: Path | None
    name: str
    threads: int = 0
    device: str = ""
    trust: bool = False  # run Python files and modules that the server's config names

    def words(self) -> list[str]:
        if self.certs is None:
            return ["--insecure"]
        key, authority = private_key(self.certs), existing_file(self.certs / "ca.crt")
        return ["--root-certificates", str(authority), "--auth-supernode-private-key", str(key)]


def private_key(certs: Path) -> Path:
    keys = sorted(certs.glob("*.key"))
    if len(keys) != 1:
        raise ConfigError(f"{certs} holds {len(keys)} private keys (NAME.key), not one: see `fedssl certs`")
    return private(keys[0])


def client(site: Site, tell: Output) -> None:
    """Take part in whatever the server runs, until somebody stops it."""
    needs_flower()
    words = site.words()
    if not site.state.exists():
        private_folder(site.state)
    private_folder(site.state / "runs")  # memories and encoders
    home = Home(site.state / "flower")
    node = {"data": str(site.data.resolve()), "state": str(site.state.resolve()), "name": site.name}
    settings = home.folder / "node.toml"
    write_toml(settings, {**node, "threads": site.threads, "device": site.device, "trust": site.trust})
    delay, log = RETRY[0], home.folder / "supernode.log"
    while True:
        if site.certs is None and speaks_tls(site.server):
            raise ConfigError(f"refused: {site.server} speaks TLS only; give --certs FOLDER, not --insecure")
        began = time.monotonic()
        process = home.start(
            "supernode",
            *("--superlink", site.server, "--host", "127.0.0.1", "--port", str(free_port())),
            *("--node-config", str(settings)),
            *words,
            log=fresh(log),
        )
        try:
            with lines_of(log, lambda line: _show_line(line, site, tell)):
                code = process.wait()
        finally:
            process.terminate()
            process.wait()
        if time.monotonic() - began > RETRY[1]:
            delay = RETRY[0]
        tell(f"no connection to {site.server} (exit code {code}): trying again in {delay:.0f} s", "warning")
        time.sleep(delay)
        delay = min(2 * delay, RETRY[1])


def _show_line(line: str, site: Site, tell: Output) -> None:
    tell.line(line)
    if CONNECTED in line:
        tell(f"connected to {site.server} as {site.name}: waiting for the server")


def fresh(log: Path) -> Path:
    """The log, started again where it has become long."""
    if log.exists() and log.stat().st_size > LONGEST_LOG:
        log.unlink()
    return log


@contextmanager
def lines_of(log: Path, show: Callable[[str], None]) -> Iterator[None]:
    """Call `show` with every line that is written to a file meanwhile."""
    start, stop = log.stat().st_size if log.exists() else 0, threading.Event()

    def read() -> None:
        place, rest = start, ""
        while True:
            last = stop.is_set()
            if log.exists():
                with open(log, encoding="utf-8", errors="replace") as file:
                    file.seek(place)
                    rest += file.read()
                    place = file.tell()
            *lines, rest = rest.split("\n")
            for line in lines:
                show(line)
            if last:
                return
            stop.wait(LOOK)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield
    finally:
        stop.set()
        reader.join()


def speaks_tls(server: str) -> bool:
    """Whether a TLS handshake succeeds, whoever it is (False also if nobody is there yet)."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = server.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=10) as connection:
            context.wrap_socket(connection).close()
    except ValueError:
        raise ConfigError(f"--server {server}: HOST:PORT is needed") from None
    except OSError:
        return False
    return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
