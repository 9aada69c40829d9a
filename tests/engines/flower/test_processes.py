"""A SuperLink and SuperNodes in separate processes, over TLS with registered keys."""

import contextlib
import http.client
import json
import os
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")
if sys.platform == "win32":
    pytest.skip("processes are killed by session", allow_module_level=True)

from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from tests.engines.flower.processes import RETURN, Sites, free_port
from tests.small import SMALL, digest
from tests.suite.waiting import PATIENCE

import fedssl
from fedssl.config import load
from fedssl.data.federation import federate
from fedssl.engines.audit_log import verify
from fedssl.engines.checkpoint import check_models
from fedssl.engines.flower.certs import make_certs, rotate
from fedssl.engines.flower.home import CONNECTION, Home
from fedssl.engines.flower.launch import Place, superlink
from fedssl.tensorfile import load_tensors

HERE = "tests.engines.flower.processes"
BASE = {**SMALL, "views": {"flip": 0.0}, "checkpoint": {"every": 1}}


def assert_same_server(first, second, round):
    mine, theirs = (
        load_tensors(run / "checkpoints" / f"round-{round:06d}.safetensors")[0] for run in (first, second)
    )
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_real_processes_give_the_same_bits_as_one(tmp_path):
    """(FedEMA is in the test below, with nodes and a server that are killed, other methods in test_grid.)"""
    keys = {"objective": "byol", "method": "fedper", "rounds": 2}
    base = {**BASE, "partition": {"scheme": "classes", "clients": 2, "classes": 5}}
    local = fedssl.run(base, out=tmp_path / "local", quiet=True, **keys)
    sites = Sites(tmp_path / "sites", load(base))
    try:
        sites.configure(base, **keys, **{"participation.min_clients": 2})
        server = sites.server()
        sites.wait(sites.has_keys, "sites should be registered", server)
        rotate(sites.folder / "keys", [sites.names[0]])  # the running server takes up the new key
        accepted = f"{sites.names[0]} may connect"
        sites.wait(lambda: server.said().count(accepted) == 2, "the new key should be accepted", server)
        clients = [sites.client(number) for number in range(2)]
        seen: set[str] = set()

        def ended():
            seen.update(command_lines())
            return server.popen.poll() is not None

        sites.wait(ended, "the run should end", *clients)
        assert server.popen.returncode == 0, server.said()
        assert any("serverapp" in line for line in seen)
        assert any("clientapp" in line for line in seen)
        assert not [line for line in seen if "--token" in line]
        check_audit_log(sites, rounds=2)
        assert_same_server(sites.run, local.path, 2)
        assert digest(sites.run) == digest(local)
        # A local run exports the global encoder, or the first client's own: so does the first site.
        first, second = (next((sites.state(name) / "runs").iterdir()) for name in sites.names)
        assert digest(first) == digest(local)
        assert (second / "encoder.safetensors").exists()
    finally:
        sites.close()


def command_lines():
    """The command lines that `ps` shows."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield file.read_bytes().replace(b"\0", b" ").decode(errors="replace")


def check_audit_log(sites, rounds):
    found = verify(sites.run)
    assert set(found.models) == set(range(1, rounds + 1))
    assert check_models(sites.run / "checkpoints", found.models) == rounds
    entries = [json.loads(line) for line in (sites.run / "audit.jsonl").read_text().splitlines()]
    events = [entry["event"] for entry in entries]
    assert events.count("key revoked") == 1
    assert events.count("key accepted") == 3
    assert {entry["site"] for entry in entries if entry["event"] == "connected"} == set(sites.names)
    uploads = [upload for entry in entries if entry["event"] == "aggregated" for upload in entry["uploads"]]
    assert len({upload["sha256"] for upload in uploads}) == len(uploads) == rounds * len(sites.names)


def test_a_run_completes_despite_kills_unknown_sites_and_invalid_uploads(tmp_path):
    """Four sites: 1 is killed in round 2 and restarted in round 4, 3 sends invalid uploads in rounds 1 to 3.

    The server is killed in round 5. There are no time limits: a killed site is left out when Flower considers
    it lost, so that a slow machine only takes longer. In the end everything is compared with a run on one
    machine in which the same clients were absent, and the recorded traffic is searched for private data.
    """
    rounds = 6
    base = {**BASE, "partition": {"scheme": "classes", "clients": 4, "classes": 3}}
    # Two steps a round: after one, the target of a client that comes back has the statistics it uploads.
    keys = {"objective": "byol", "method.name": f"{HERE}:Mallory", "rounds": rounds, "train.batch_size": 8}
    sites = Sites(tmp_path / "sites", load(base), listen=True)
    try:
        sites.configure(base, **keys, **{"engine.patience": RETURN})
        server = sites.server()
        sites.wait(sites.has_keys, "sites should be registered", server)
        clients = [sites.client(number) for number in range(4)]
        stranger = a_stranger(sites)
        plain = sites.client(0, name="plain", trust=("--insecure", "--name", "plain"))

        sites.wait(lambda: sites.rounds() >= 1, "round 1 should end", server, *clients)
        clients[1].kill()
        sites.wait(lambda: sites.rounds() >= 3, "rounds go on without site 1", server)
        clients[1] = sites.client(1)
        sites.wait(lambda: sites.rounds() >= 4, "round 4 should end", server)
        server.kill_parent()
        assert sites.rounds() < rounds
        server = sites.server()
        sites.wait(lambda: server.popen.poll() is not None, "the run should complete")
        assert server.popen.returncode == 0, server.said()

        check_who_was_there(sites, rounds)
        check_refusals(sites, server, stranger, plain)
        check_against_one_machine(sites, tmp_path / "local", base, keys, rounds)
        check_what_was_sent(sites, load(base))
    finally:
        sites.close()


def a_stranger(sites):
    """A site with a key from the right authority that is not registered."""
    keys = sites.folder / "keys"
    make_certs(keys, [], ["stranger"])
    os.remove(keys / "server" / "sites" / "stranger.pub")
    return sites.client(0, name="stranger")


def check_who_was_there(sites, rounds):
    metrics = fedssl.Run(sites.run).metrics
    assert [line["round"] for line in metrics] == list(range(1, rounds + 1))
    there = {line["round"]: {client["client"] for client in line["clients"]} for line in metrics}
    assert there[1] == {0, 1, 2}
    assert there[2] == there[3] == {0, 2}
    assert there[6] == {0, 1, 2, 3}  # all are back, and Mallory is honest again


def check_refusals(sites, server, stranger, plain):
    refused = {
        (line["round"], failure["client"]): failure["reason"]
        for line in fedssl.Run(sites.run).metrics
        for failure in line["failed"]
    }
    assert "is not finite" in refused[1, 3]
    assert "has shape (1,), not" in refused[2, 3]
    assert "global norms from the global model: participation.max_change is 10" in refused[3, 3]
    for reason in (refused[1, 3], refused[2, 3], refused[3, 3]):
        assert f"site-3 left out: {reason}" in server.said()
    log = (sites.run / "flower" / "superlink.log").read_text()
    assert "No SuperNode found with the given public key" in log
    assert "refused 127.0.0.1" in log
    assert "no connection to localhost" in stranger.said()
    flowers = (sites.state("stranger") / "flower" / "supernode.log").read_text(errors="replace")
    assert "Failed to initialize the connection to the SuperLink" in flowers
    assert not any("Traceback" in process.said() for process in (server, stranger))
    sites.wait(lambda: plain.popen.poll() is not None, "a site without TLS should be refused")
    assert "only accepts TLS" in plain.said()
    for name in ("stranger", "plain"):
        assert not list((sites.state(name) / "runs").glob("*"))


def check_against_one_machine(sites, out, base, keys, rounds):
    replay = {"engine.name": f"{HERE}:Replay", "engine.seen": str(sites.run / "metrics.jsonl")}
    local = fedssl.run(base, out=out, quiet=True, **{**keys, "participation.max_change": 10.0, **replay})
    assert_same_server(sites.run, local.path, rounds)
    assert digest(sites.run) == digest(local)


def check_what_was_sent(sites, config):
    recorder = sites.recorder
    sent = b"\0".join(bytes(stream) for stream in [*recorder.up, *recorder.down])
    images = federate(config).train.x.numpy()
    found = 0
    for image in images:
        as_floats = (image.astype(np.float32) / 255 - config.data.mean) / config.data.std
        assert image.tobytes() not in sent
        assert as_floats.astype(np.float32).tobytes() not in sent
    for folder in sites.images:
        for file in folder.iterdir():
            assert file.read_bytes() not in sent
    for client in range(3):  # Mallory's last memory is searched for with the others' below
        for file in sorted(sites.state(f"site-{client}").rglob("round-*.safetensors"))[-1:]:
            memory, _ = load_tensors(file)
            for name, value in memory.items():
                if value.is_floating_point() and value.numel() >= 16:
                    here = value.numpy().tobytes() in sent
                    assert here == (not name.startswith("target."))
                    found += here
    assert found > 20  # the search does find what was sent: the shared tensors


def test_the_gate_protects_a_real_superlink(tmp_path):
    """Requests to the loopback address from another address of this machine look like a site's."""
    other = outward_address()
    if other is None:
        pytest.skip("this machine has no address but the loopback's")
    port = free_port()

    def status(source, path):
        connection = http.client.HTTPConnection(
            "127.0.0.1", port, timeout=PATIENCE, source_address=(source, 0)
        )
        connection.request("POST", path, b"", {"Content-Type": PROTOBUF_MEDIA_TYPE})
        return connection.getresponse().status

    home = Home(tmp_path / "home")
    home.connect(f"127.0.0.1:{port}", None)
    with superlink(home, Place("127.0.0.1", port, None), 1 << 20):
        for path in ("/v1/control/list-runs", "/v1/control/register-node", "/v1/runtime/acquire-task"):
            assert status(other, path) == 403
            assert status("127.0.0.1", path) == 401  # another local user has neither token nor secret
        assert status(other, "/v1/fleet/pull-messages") == 401  # it gets through, but has no key
        assert home.ask("list", CONNECTION)["runs"] == []  # the server's own user has the token
        for file in home.folder.glob("superlink.db*"):
            assert file.stat().st_mode & 0o077 == 0
    assert "is for the server's own machine" in (tmp_path / "home" / "superlink.log").read_text()
    verify(tmp_path)  # refusals are in the audit log


def outward_address():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            return None
        address = probe.getsockname()[0]
    return None if address.startswith("127.") else address
