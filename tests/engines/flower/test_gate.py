"""Which requests from other machines reach a SuperLink."""

import asyncio
import json
import logging

import pytest

pytest.importorskip("flwr")

from flwr.app import Array
from flwr.proto.message_pb2 import PushObjectRequest

from fedssl.engines.audit_log import AuditLog, verify
from fedssl.engines.flower.gate import CHUNK, Gate

HERE, THERE = ("127.0.0.1", 5000), ("203.0.113.9", 5000)
MAX = 3 * CHUNK
TOKEN = "0" * 64


def ask(path, body=b"", client=THERE, server=("192.0.2.1", 8000), answer=(200, b"ok"), token="", audit=None):
    """Send a request through the gate; its answer, and whether the SuperLink saw it."""
    seen, sent = [], []

    async def superlink(scope, receive, send):
        found = b""
        while True:
            event = await receive()
            found += event["body"]
            if not event.get("more_body"):
                break
        seen.append(found)
        await send({"type": "http.response.start", "status": answer[0], "headers": []})
        await send({"type": "http.response.body", "body": answer[1]})

    pieces = [body[start : start + 65536] for start in range(0, len(body), 65536)] or [b""]

    async def receive():
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(event):
        sent.append(event)

    headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    scope = {"type": "http", "path": path, "client": client, "server": server, "headers": headers}
    asyncio.run(Gate(superlink, MAX, TOKEN, audit)(scope, receive, send))
    return sent[0]["status"], sent[1]["body"], seen


@pytest.mark.parametrize(
    "path", ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task"]
)
@pytest.mark.parametrize("path_end", ["", "/"])
def test_requests_that_start_code_must_be_local(path, path_end, caplog):
    caplog.set_level(logging.WARNING)
    status, body, seen = ask(path + path_end)
    assert (status, seen) == (403, [])
    assert "is for the server's own machine" in body.decode()
    assert f"refused 203.0.113.9: {path}" in caplog.text
    assert ask(path, b"x", client=HERE, token=TOKEN) == (200, b"ok", [b"x"])
    own = ("192.0.2.1", 1)
    assert ask(path, b"x", client=own, server=("192.0.2.1", 8000), token=TOKEN)[0] == 200  # from itself
    assert ask(path, b"x", client=("::1", 1), token=TOKEN)[0] == 200
    assert ask(path, b"x", client=None, token=TOKEN)[0] == 403
    assert ask(path, b"x", token=TOKEN)[0] == 403  # from elsewhere also with the token


@pytest.mark.parametrize("token", ["", "1" * 64, TOKEN[:-1], TOKEN + "0"])
def test_other_local_users_cannot_start_runs(token):
    for path in ("/v1/control/start-run", "/v1/control/register-node", "/docs", ""):
        status, body, seen = ask(path, b"x", client=HERE, token=token)
        assert (status, seen) == (401, [])
        assert "is for those who have the server's token" in body.decode()
    # The server's own processes: Flower checks the secret that they share, or the token of their task.
    assert ask("/v1/runtime/acquire-task", b"x", client=HERE)[0] == 200


def test_a_refusal_is_in_the_audit_log_once_a_minute(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("fedssl.engines.flower.gate.time.monotonic", lambda: now[0])
    gate = Gate(None, MAX, TOKEN, AuditLog(tmp_path))

    def knock(address, path="/v1/control/start-run"):
        gate._note({"client": (address, 1), "path": path}, "no\nentry")

    for second in range(90):
        now[0] = 1000.0 + second
        knock("203.0.113.9")
    knock("203.0.113.10")
    for address in range(300):  # a crowd does not fill the disk either
        knock(f"198.51.100.{address}")
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [line["address"] for line in lines[:3]] == ["203.0.113.9", "203.0.113.9", "203.0.113.10"]
    assert lines[0]["reason"] == "no entry"
    assert len(lines) == 101
    verify(tmp_path)


@pytest.mark.parametrize(
    "path", ["/docs", "/openapi.json", "/v1/fleet", "/v1/fleetx/", "/../v1/control/x", ""]
)
def test_sites_reach_only_their_own_paths(path):
    assert ask(path)[0] == 403


def test_messages_of_sites_are_forwarded_unchanged():
    body = bytes(range(256)) * 100
    assert ask("/v1/fleet/pull-messages", body) == (200, b"ok", [body])


def test_too_long_requests_are_not_read_completely():
    status, body, seen = ask("/v1/fleet/push-messages", b"x" * 200_000)
    assert (status, seen) == (413, [])
    assert b"more than" in body
    assert ask("/v1/fleet/push-object", b"x" * (CHUNK + 200_000))[0] == 413


@pytest.mark.parametrize("kind", ["websocket", "http"])
def test_aborted_and_non_http_requests_are_dropped(kind):
    seen, sent = [], []

    async def superlink(scope, receive, send):
        seen.append(await receive())

    async def receive():
        return {"type": f"{kind}.disconnect"}

    async def send(event):
        sent.append(event)

    scope = {"type": kind, "path": "/v1/fleet/push-messages", "client": THERE, "server": ("192.0.2.1", 1)}
    asyncio.run(Gate(superlink, MAX, TOKEN)(scope, receive, send))
    assert seen == []


def pushed(content):
    return PushObjectRequest(object_id="0" * 64, object_content=content).SerializeToString()


def test_an_array_made_by_flower_is_forwarded():
    array = Array(dtype="uint8", shape=(MAX,), stype="safetensors", data=bytes(MAX))
    assert len(json.loads(array.deflate().partition(b"\0")[2])["arraychunk_ids"]) == 3
    assert ask("/v1/fleet/push-object", pushed(array.deflate()))[0] == 200
    for _, piece in array.slice_array():
        assert ask("/v1/fleet/push-object", pushed(piece.deflate()))[0] == 200


def test_an_array_that_unfolds_into_a_thousand_times_its_size_is_refused(caplog):
    body = json.dumps({"dtype": "uint8", "shape": [1], "stype": "x", "arraychunk_ids": [0] * 1000}).encode()
    bomb = b"Array " + b"a" * 64 + b" " + str(len(body)).encode() + b"\0" + body
    status, said, seen = ask("/v1/fleet/push-object", pushed(bomb))
    assert (status, seen) == (413, [])
    assert b"an array of 1,000 pieces: at most 3 are accepted" in said


@pytest.mark.parametrize(
    "content", [b"Array x 3\0{}", b"Array x 3\0[", b"Array x 3\0" + b"[" * 100_000, b"Array \xff"]
)
def test_invalid_arrays_are_refused(content):
    assert ask("/v1/fleet/push-object", pushed(content))[0] == 400


def test_invalid_protobuf_is_refused():
    assert ask("/v1/fleet/push-object", b"\xff\xff\xff")[0] == 400


def test_refusals_of_the_superlink_are_logged(caplog):
    caplog.set_level(logging.WARNING)
    ask("/v1/fleet/activate-node", answer=(409, b'{"code": 1,\n "message": "no such key"}'))
    assert 'refused 203.0.113.9: {"code": 1, "message": "no such key"}' in caplog.text
