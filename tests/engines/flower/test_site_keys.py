"""Keys of sites that change while the server runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("flwr")

from fedssl.engines.audit_log import AuditLog, verify
from fedssl.engines.flower import sites
from fedssl.engines.flower.certs import make_certs, revoke, rotate
from fedssl.engines.flower.home import Home


class Link:
    """Records the requests to the SuperLink."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, list[str]()

    def ask(self, *words: str) -> dict[str, Any]:
        self.asked.append(words[1])
        return {"node-id": len(self.asked)}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.setattr(sites, "LOOK", 0.01)
    make_certs(tmp_path / "keys", ["localhost"], ["berlin", "paris"])
    return SimpleNamespace(
        keys=tmp_path / "keys",
        folder=tmp_path / "keys" / "server" / "sites",
        link=Link(tmp_path),
        audit=AuditLog(tmp_path),
        said=list[str](),
    )


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_keys_are_rotated_and_revoked_without_a_restart(server: SimpleNamespace, tmp_path: Path) -> None:
    home, tell = cast(Home, server.link), server.said.append
    sites.register(home, sites.read_keys(server.folder), tell, server.audit)
    assert server.link.asked == ["register", "register"]
    with sites.watching(server.folder, ["berlin", "paris"], home, tell, server.audit):
        rotate(server.keys, ["berlin"])
        wait_for(lambda: server.link.asked[2:] == ["unregister", "register"])
        revoke(server.keys, ["paris"])
        wait_for(lambda: server.link.asked[4:] == ["unregister"])
        make_certs(server.keys, [], ["madrid"])
        wait_for(lambda: bool(server.said) and "madrid: takes part" in server.said[-1])
    assert len(server.link.asked) == 5
    events = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    revoked = [(each["event"], each["site"]) for each in events[2:]]
    assert revoked == [("key revoked", "berlin"), ("key accepted", "berlin"), ("key revoked", "paris")]
    verify(tmp_path)
