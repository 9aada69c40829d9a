"""`fedssl client`: starts Flower's SuperNode with secure settings and reconnects when it ends."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fedssl.engines.flower.engine import needs_flower
from fedssl.engines.flower.home import Home
from fedssl.engines.flower.journal import Output
from fedssl.engines.flower.launch import existing_file, private
from fedssl.errors import ConfigError
from fedssl.storage import private_folder, write_toml

CONNECTED = "SuperNode ID:"  # in Flower's log once the server has accepted the site
MAX_LOG = 10 << 20  # bytes of Flower's log at a site; then it starts again
POLL = 0.3  # seconds between two reads of it
RETRY = (5.0, 60.0)  # seconds before a client connects again: first, and at most


@dataclass(frozen=True)
class Site:
    """The options of `fedssl client`."""

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
        raise ConfigError(
            f"{certs} contains {len(keys)} private keys (NAME.key), not one: see `fedssl certs`"
        )
    return private(keys[0])


def client(site: Site, tell: Output) -> None:
    """Take part in the server's runs until stopped.

    Args:
        site: the site.
        tell: prints events.
    """
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
            raise ConfigError(f"refused: {site.server} only accepts TLS; pass --certs FOLDER, not --insecure")
        began = time.monotonic()
        process = home.start(
            "supernode",
            *("--superlink", site.server, "--host", "127.0.0.1", "--port", str(free_port())),
            *("--node-config", str(settings)),
            *words,
            log=truncate_log(log),
        )
        try:
            with follow_lines(log, lambda line: _show_line(line, site, tell)):
                code = process.wait()
        finally:
            process.terminate()
            process.wait()
        if time.monotonic() - began > RETRY[1]:
            delay = RETRY[0]
        tell(f"no connection to {site.server} (exit code {code}): retrying in {delay:.0f} s", "warning")
        time.sleep(delay)
        delay = min(2 * delay, RETRY[1])


def _show_line(line: str, site: Site, tell: Output) -> None:
    tell.line(line)
    if CONNECTED in line:
        tell(f"connected to {site.server} as {site.name}: waiting for the server")


def truncate_log(log: Path) -> Path:
    """The log file, deleted if it is too long."""
    if log.exists() and log.stat().st_size > MAX_LOG:
        log.unlink()
    return log


@contextmanager
def follow_lines(log: Path, show: Callable[[str], None]) -> Iterator[None]:
    """Context manager that calls `show` with every line that is written to a file."""
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
            stop.wait(POLL)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield
    finally:
        stop.set()
        reader.join()


def speaks_tls(server: str) -> bool:
    """Whether a TLS handshake succeeds, without verifying the server; False if there is no server yet."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = server.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=10) as connection:
            context.wrap_socket(connection).close()
    except ValueError:
        raise ConfigError(f"--server {server}: use HOST:PORT") from None
    except OSError:
        return False
    return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
