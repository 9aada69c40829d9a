"""Tasks and outcomes as Flower's records: a line of JSON, and tensors as bytes (`fedssl.engines.wire`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, RecordDict
from flwr.common.constant import ErrorCode
from pydantic import Field, ValidationError

from fedssl.engines import wire
from fedssl.engines.tasks import Outcome
from fedssl.engines.wire import WireError
from fedssl.options import Options, explain
from fedssl.privacy.secure.server import Answer
from fedssl.state import State, Upload

TRAIN, KEEP, HELLO = "train", "evaluate", "query"  # Flower's types of messages
SECURE = "query.secure"  # an exchange of secure aggregation
LONGEST = 1 << 20  # characters of a reply's JSON
MOST = 1 << 53  # largest count or number outside of tensors

# Descriptions of Flower's errors.
PROBLEMS = {
    ErrorCode.LOAD_CLIENT_APP_EXCEPTION: "the site's fedssl could not be started; its own output says why",
    ErrorCode.MESSAGE_UNAVAILABLE: "lost: the site did not fetch its task, or did not answer in time",
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE: "lost: the site's answer did not arrive in time",
    ErrorCode.NODE_UNAVAILABLE: "lost: the site has not sent a heartbeat for too long",
    ErrorCode.INVALID_FAB: "the site did not accept the server's app",
    ErrorCode.CLIENT_APP_CRASHED: "the site's training process ended early; it may have run out of memory",
}

Name = Annotated[str, Field(max_length=256)]
Number = Annotated[int, Field(ge=-MOST, le=MOST)] | float  # whether it is finite is checked with the upload
RESERVED = {"client", "images", "loss", "seconds"}  # keys of a client in metrics.jsonl


class Reply(Options):
    """A node's report about its work, which is not trusted before it is checked."""

    failure: str = Field("", max_length=2000)
    views: int = Field(0, ge=0, le=MOST)
    seconds: float = Field(0.0, ge=0, le=MOST)
    remembers: bool = False
    num_samples: int = Field(0, ge=-MOST, le=MOST)
    loss: float = 0.0
    # Secure aggregation has a number for every tensor.
    values: dict[Name, Number] = Field(default_factory=dict, max_length=4096)


def array(state: State, dtype: str) -> Array:
    """Convert tensors to a Flower array of opaque bytes."""
    data = wire.pack(state, dtype)
    return Array(dtype="uint8", shape=(len(data),), stype="safetensors", data=data)


def records(text: Mapping[str, Any], arrays: Sequence[Array] = ()) -> RecordDict:
    found: dict[str, Any] = {"text": ConfigRecord({"json": json.dumps(text)})}
    if arrays:
        found["tensors"] = ArrayRecord({str(number): value for number, value in enumerate(arrays)})
    return RecordDict(found)


def read_text(content: RecordDict, longest: int = LONGEST) -> Any:
    """Read the JSON of a message."""
    record = content.get("text")
    text = record.get("json") if isinstance(record, ConfigRecord) else None
    if not isinstance(text, str) or len(text) > longest:
        raise WireError("a message without text, or with too long a text")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"a message with a text that is not JSON: {error}") from None


def read_tensors(content: RecordDict) -> list[bytes]:
    """The bytes of a message's tensors, not yet parsed."""
    found = content.get("tensors")
    if not isinstance(found, ArrayRecord):
        return []
    if set(found) != {str(number) for number in range(len(found))}:
        raise WireError("a message whose tensors are not numbered")
    return [found[str(number)].data for number in range(len(found))]


def reply(outcome: Outcome, dtype: str) -> RecordDict:
    """Build a node's answer to a task."""
    upload = outcome.upload
    reply = Reply(
        failure=outcome.failure[:2000],
        views=outcome.views,
        seconds=outcome.seconds,
        remembers=outcome.remembers,
    )
    if upload is None:
        return records(reply.model_dump())
    reply = reply.model_copy(
        update={"num_samples": upload.num_samples, "loss": upload.loss, "values": upload.values}
    )
    return records(reply.model_dump(), [array(upload.state, dtype)])


def secure_reply(answer: Answer) -> RecordDict:
    """Build a node's answer in an exchange of secure aggregation."""
    if answer.failure:
        return records({"failure": answer.failure[:2000]})
    size = len(answer.data)
    return records({}, [Array(dtype="uint8", shape=(size,), stype="bytes", data=answer.data)])


def read_secure_answer(content: RecordDict, client: int, longest: int) -> Answer:
    """Parse a node's answer in an exchange; an answer that cannot be read is a failure."""
    try:
        reply, arrays = read_text(content), read_tensors(content)
    except WireError as error:
        return Answer(client, failure=f"cannot be read: {error}")
    failure = reply.get("failure", "") if isinstance(reply, dict) else "an answer without text"
    if failure or len(arrays) != 1:
        return Answer(client, failure=str(failure)[:2000] or f"an answer with {len(arrays)} parts, not 1")
    if len(arrays[0]) > longest:
        return Answer(client, failure=f"{len(arrays[0]):,} bytes: at most {longest:,} are accepted")
    return Answer(client, arrays[0])


def read_outcome(content: RecordDict, client: int, longest: int) -> Outcome:
    """Parse a node's answer; `longest` limits the bytes of its tensors.

    With `longest` 0 an upload is not asked for.
    """
    try:
        reply, arrays = _read_reply(content), read_tensors(content)
        if reply.failure or not longest:
            return Outcome(client, failure=reply.failure)
        if len(arrays) != 1:
            return Outcome(client, failure=f"an answer with {len(arrays)} uploads, not 1")
        state = wire.unpack(arrays[0], longest)
    except WireError as error:
        return Outcome(client, failure=f"cannot be read: {error}")
    upload = Upload(client, state, reply.num_samples, reply.loss, reply.values)
    return Outcome(client, upload, "", reply.views, reply.seconds, reply.remembers)


def problem(error: Error) -> str:
    """Describe why there is no answer."""
    if error.code in PROBLEMS:
        return PROBLEMS[error.code]
    return f"no answer: {' '.join(str(error.reason).split())[:2000]}"


def _read_reply(content: RecordDict) -> Reply:
    text = read_text(content)
    try:
        reply = Reply.model_validate(text)
    except ValidationError as error:
        raise WireError(explain(error, Reply, "")[:500]) from None
    if RESERVED & reply.values.keys():
        raise WireError(f"values with reserved names: {', '.join(sorted(RESERVED & reply.values.keys()))}")
    return reply
