"""Sites may connect if their public key is in the server's folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from fedssl.engines.flower.certs import check_name
from fedssl.engines.flower.home import CONNECTION, Home
from fedssl.errors import ConfigError
from fedssl.storage import write_json


def read_keys(folder: Path) -> dict[str, Path]:
    """The public keys of all sites, by name."""
    keys = {file.stem: file for file in sorted(folder.glob("*.pub"))}
    if not keys:
        raise ConfigError(f"{folder} holds no public keys of sites (NAME.pub): see `fedssl certs`")
    for name in keys:
        check_name(name)
    return keys


def register(home: Home, keys: dict[str, Path], tell: Callable[[str], None]) -> None:
    """Make what the SuperLink knows agree with the keys that are there; it remembers from start to start."""
    file = home.folder / "sites.json"
    known: dict[str, dict[str, str]] = json.loads(file.read_text()) if file.exists() else {}
    for name, entry in list(known.items()):
        if name not in keys or keys[name].read_text() != entry["key"]:
            home.ask("supernode", "unregister", entry["node"], CONNECTION)
            del known[name]
            tell(f"{name}: its old key is not accepted any more")
    for name, key in keys.items():
        if name not in known:
            answer = home.ask("supernode", "register", str(key), CONNECTION, "--name", name)
            known[name] = {"key": key.read_text(), "node": str(answer["node-id"])}
            tell(f"{name} may connect")
        write_json(file, known)
