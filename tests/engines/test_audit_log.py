"""The chain of the audit log shows which entries were changed, removed or inserted."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest
import torch
from tests.small import small_run

from fedssl import cli
from fedssl.engines.audit_log import AuditLog, verify
from fedssl.errors import RunError
from fedssl.state import digest


@pytest.fixture
def log(tmp_path: Path) -> Path:
    for number in range(5):
        AuditLog(tmp_path).append("refused", reason=f"reason {number}")
    return tmp_path / "audit.jsonl"


def test_the_chain_can_be_verified_independently(log: Path) -> None:
    """An independent implementation: SHA-256 of the entry as sorted JSON, without its hash."""
    previous = "0" * 64
    for number, line in enumerate(log.read_text().splitlines(), 1):
        entry = json.loads(line)
        own = entry.pop("hash")
        assert hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest() == own
        assert (entry["n"], entry["previous"]) == (number, previous)
        previous = own
    found = verify(log.parent)
    assert (found.entries, found.head) == (5, previous)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda lines: [*lines[:2], lines[2].replace("reason 2", "reason 7"), *lines[3:]],
            "line 3: this entry",
        ),
        (lambda lines: [*lines[:2], *lines[3:]], "line 3: entries before this one"),
        (lambda lines: [lines[0], lines[0], *lines[1:]], "line 2: entries before this one"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "line 1: entries before this one"),
        (
            lambda lines: [*lines[:2], lines[2][:30] + "\n", *lines[3:]],
            "line 3: this is not a complete entry",
        ),
        (lambda lines: [], "is empty"),
    ],
)
def test_changes_are_located(log: Path, change: object, said: str) -> None:
    log.write_text("".join(change(log.read_text().splitlines(keepends=True))))  # type: ignore[operator]
    with pytest.raises(RunError, match=said):
        verify(log.parent)


def test_every_flipped_bit_is_detected(log: Path) -> None:
    content, chance = log.read_bytes(), random.Random(0)
    for _ in range(100):
        position = chance.randrange(len(content))
        log.write_bytes(
            content[:position]
            + bytes([content[position] ^ (1 << chance.randrange(8))])
            + content[position + 1 :]
        )
        with pytest.raises(RunError, match="line"):
            verify(log.parent)


def test_a_rewritten_log_lacks_a_known_hash(log: Path, tmp_path: Path) -> None:
    kept = verify(log.parent).head
    AuditLog(log.parent).append("left", site="berlin")
    assert verify(log.parent, kept).entries == 6
    log.unlink()
    AuditLog(log.parent).append("refused", reason="reason 0")
    with pytest.raises(RunError, match=r"no entry has the hash .*: the log was rewritten"):
        verify(log.parent, kept)


def test_a_truncated_entry_is_removed_and_recorded(log: Path) -> None:
    with open(log, "a") as file:
        file.write('{"n": 6, "ti')
    AuditLog(log.parent).append("left", site="berlin")
    assert verify(log.parent).entries == 7
    assert json.loads(log.read_text().splitlines()[5])["event"] == "cut"


def test_a_run_with_an_audit_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = small_run(tmp_path / "run", rounds=2, **{"log.audit": True})
    assert cli.main(["audit-log", "verify", str(run.path)]) == 0
    said = capsys.readouterr().out
    assert "checkpoint of round 2: the model that was aggregated" in said
    assert cli.main(["audit-log", "verify", str(run.path), "--head", said.split()[-1]]) == 0
    entries = [json.loads(line) for line in (run.path / "audit.jsonl").read_text().splitlines()]
    assert [entry["event"] for entry in entries] == ["started", "aggregated", "aggregated"]
    assert [len(entry["uploads"]) for entry in entries[1:]] == [5, 5]
    # A checkpoint with another model than the one in the log.
    checkpoint = run.path / "checkpoints" / "round-000002.safetensors"
    (run.path / "checkpoints" / "round-000001.safetensors").unlink(missing_ok=True)
    other = small_run(tmp_path / "other", rounds=2, seed=1)
    checkpoint.write_bytes((other.path / "checkpoints" / checkpoint.name).read_bytes())
    assert cli.main(["audit-log", "verify", str(run.path)]) == 1
    assert "is not the model that was aggregated in round 2" in capsys.readouterr().err
    assert cli.main(["audit-log", "verify", str(other.path)]) == 1
    assert "has no audit log" in capsys.readouterr().err


def test_the_digest_is_of_names_shapes_types_and_values() -> None:
    state = {"a": torch.ones(2, 3), "n": torch.tensor(3)}
    other_order = {"n": torch.tensor(3), "a": torch.ones(3, 2).t()}
    assert digest(state) == digest(other_order)
    for changed in (
        {**state, "a": torch.ones(3, 2)},
        {**state, "a": torch.ones(2, 3).double()},
        {**state, "n": torch.tensor(4)},
        {"b": state["a"], "n": state["n"]},
    ):
        assert digest(changed) != digest(state)
