"""Sites may connect if their public key is in the server's folder."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedssl.engines.audit_log import AuditLog
from fedssl.engines.flower.certs import check_name
from fedssl.engines.flower.home import CONNECTION, Home
from fedssl.errors import ConfigError, FedsslError
from fedssl.storage import write_json

LOOK = 2.0  # seconds between checks of the folder of keys


def read_keys(folder: Path) -> dict[str, Path]:
    """The public keys of all sites, by name."""
    keys = {file.stem: file for file in sorted(folder.glob("*.pub"))}
    if not keys:
        raise ConfigError(f"{folder} holds no public keys of sites (NAME.pub): see `fedssl certs`")
    for name in keys:
        check_name(name)
    return keys


def register(home: Home, keys: dict[str, Path], tell: Callable[[str], None], audit: AuditLog) -> None:
    """Synchronize the SuperLink with the existing keys, because it stores keys between starts."""
    file = home.folder / "sites.json"
    known: dict[str, dict[str, str]] = json.loads(file.read_text()) if file.exists() else {}
    for name, entry in list(known.items()):
        if name not in keys or keys[name].read_text() != entry["key"]:
            home.ask("supernode", "unregister", entry["node"], CONNECTION)
            del known[name]
            write_json(file, known)
            audit.append("key revoked", site=name, key=_fingerprint(entry["key"]))
            tell(f"{name}: its old key is not accepted any more")
    for name, key in keys.items():
        if name not in known:
            answer = home.ask("supernode", "register", str(key), CONNECTION, "--name", name)
            known[name] = {"key": key.read_text(), "node": str(answer["node-id"])}
            write_json(file, known)
            audit.append("key accepted", site=name, key=_fingerprint(known[name]["key"]))
            tell(f"{name} may connect")


@contextmanager
def watching(
    folder: Path, sites: Collection[str], home: Home, tell: Callable[[str], None], audit: AuditLog
) -> Iterator[None]:
    """Context manager that applies changed and removed keys while the server runs.

    Args:
        folder: where the public keys are.
        sites: the sites of the run; others have to wait for the next start of the server.
        home: the server's folder for Flower.
        tell: called with a description of each change.
        audit: the run's audit log.
    """
    over = threading.Event()
    seen = _contents(folder)

    def watch() -> None:
        nonlocal seen
        while not over.wait(LOOK):
            now = _contents(folder)
            if now == seen:
                continue
            for name in now.keys() - seen.keys() - set(sites):
                tell(f"{name}: takes part after the server is restarted")
            seen = now
            try:
                keys = {name: folder / f"{name}.pub" for name in now if name in sites}
                register(home, keys, tell, audit)
            except (FedsslError, OSError) as error:
                tell(f"keys of sites: {error}")
                seen = {}  # try again

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _contents(folder: Path) -> dict[str, str]:
    found = {}
    for file in sorted(folder.glob("*.pub")):
        try:
            found[file.stem] = file.read_text()
        except OSError:  # it was removed a moment ago
            continue
    return found


def _fingerprint(key: str) -> str:
    """The SHA-256 of the file of a public key."""
    return hashlib.sha256(key.encode()).hexdigest()
