"""What gets through to a SuperLink from elsewhere."""

import asyncio
import json
import logging

import pytest

pytest.importorskip("flwr")

from flwr.app import Array
from flwr.proto.message_pb2 import PushObjectRequest

from fedssl.engines.flower.gate import CHUNK, Gate

HERE, THERE = ("127.0.0.1", 5000), ("203.0.113.9", 5000)
MAX = 3 * CHUNK


def ask(path, body=b"", client=THERE, server=("192.0.2.1", 8000), answer=(200, b"ok")):
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

    scope = {"type": "http", "path": path, "client": client, "server": server}
    asyncio.run(Gate(superlink, MAX)(scope, receive, send))
    return sent[0]["status"], sent[1]["body"], seen


@pytest.mark.parametrize(
    "path", ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task"]
)
@pytest.mark.parametrize("path_end", ["", "/"])
def test_what_starts_code_is_for_the_servers_own_machine(path, path_end, caplog):
    caplog.set_level(logging.WARNING)
    status, body, seen = ask(path + path_end)
    assert (status, seen) == (403, [])
    assert "is for the server's own machine" in body.decode()
    assert f"refused 203.0.113.9: {path}" in caplog.text
    assert ask(path, b"x", client=HERE) == (200, b"ok", [b"x"])
    assert ask(path, b"x", client=("192.0.2.1", 1), server=("192.0.2.1", 8000))[0] == 200  # from itself
    assert ask(path, b"x", client=("::1", 1))[0] == 200
    assert ask(path, b"x", client=None)[0] == 403


@pytest.mark.parametrize(
    "path", ["/docs", "/openapi.json", "/v1/fleet", "/v1/fleetx/", "/../v1/control/x", ""]
)
def test_only_what_is_for_sites_is_for_sites(path):
    assert ask(path)[0] == 403


def test_what_sites_send_gets_through_whole():
    body = bytes(range(256)) * 100
    assert ask("/v1/fleet/pull-messages", body) == (200, b"ok", [body])


def test_requests_that_are_too_long_are_not_read_to_their_end():
    status, body, seen = ask("/v1/fleet/push-messages", b"x" * 200_000)
    assert (status, seen) == (413, [])
    assert b"more than" in body
    assert ask("/v1/fleet/push-object", b"x" * (CHUNK + 200_000))[0] == 413


@pytest.mark.parametrize("kind", ["websocket", "http"])
def test_what_is_broken_off_or_no_http_does_not_get_through(kind):
    seen, sent = [], []

    async def superlink(scope, receive, send):
        seen.append(await receive())

    async def receive():
        return {"type": f"{kind}.disconnect"}

    async def send(event):
        sent.append(event)

    scope = {"type": kind, "path": "/v1/fleet/push-messages", "client": THERE, "server": ("192.0.2.1", 1)}
    asyncio.run(Gate(superlink, MAX)(scope, receive, send))
    assert seen == []


def pushed(content):
    return PushObjectRequest(object_id="0" * 64, object_content=content).SerializeToString()


def test_an_array_of_flowers_own_making_gets_through():
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
def test_arrays_that_are_none_are_refused(content):
    assert ask("/v1/fleet/push-object", pushed(content))[0] == 400


def test_protobuf_that_is_none_is_refused():
    assert ask("/v1/fleet/push-object", b"\xff\xff\xff")[0] == 400


def test_what_the_superlink_refuses_is_noted(caplog):
    caplog.set_level(logging.WARNING)
    ask("/v1/fleet/activate-node", answer=(409, b'{"code": 1,\n "message": "no such key"}'))
    assert 'refused 203.0.113.9: {"code": 1, "message": "no such key"}' in caplog.text
