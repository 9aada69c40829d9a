"""Damage on the disk is named; a run continues from the last complete state, or not at all."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.small import SMALL, digest

import fedssl
from fedssl import cli, experiment
from fedssl.config import load
from fedssl.engines.checkpoint import Checkpoints, file_of, load_checkpoint
from fedssl.engines.memory import MemoryStore
from fedssl.errors import ConfigError, RunError
from fedssl.listener import Listener
from fedssl.locks import Scratch, exclusive, remove_abandoned
from fedssl.rundir import RunDir
from fedssl.storage import append_line, numbered_lines, read_lines
from fedssl.tensorfile import load_tensors, save_tensors

KEYS = {"objective": "byol", "method": "fedema", "rounds": 4, "checkpoint.every": 1}


class Stop(Exception):
    pass


class StopAt(Listener):
    def __init__(self, number: int) -> None:
        self.number = number

    def round(self, line: dict[str, Any]) -> None:
        if line["round"] == self.number:
            raise Stop


class Heard(Listener):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def timeless(value: Any) -> Any:
    """A line of metrics without times."""
    if isinstance(value, dict):
        return {key: timeless(part) for key, part in value.items() if key != "seconds"}
    return [timeless(part) for part in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> fedssl.Run:
    out = tmp_path_factory.mktemp("whole") / "run"
    return fedssl.run(load(SMALL, KEYS), out=out, quiet=True)


@pytest.fixture(scope="module")
def after_three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended in round 4; it has checkpoints of rounds 2 and 3."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Stop):
        experiment.run(load(SMALL, KEYS), out, StopAt(4))
    return out


@pytest.fixture
def stopped(after_three: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(after_three, tmp_path / "run"))


def flip(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)


def damage_checkpoint(run: Path) -> str:
    flip(file_of(run / "checkpoints", 3), -100)
    return "the checkpoint of round 3 cannot be used: .*its checksum does not match; going back to round 2"


def remove_memory(run: Path) -> str:
    (run / "checkpoints" / "clients" / "1" / "round-000003.safetensors").unlink()
    return "1/round-000003.safetensors cannot be read: .*; going back to round 2"


def damage_metrics(run: Path) -> str:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    lines[2] = lines[2].replace("0", "1", 1)
    (run / "metrics.jsonl").write_text("".join(lines))
    return "metrics.jsonl, line 3 is damaged: its checksum does not match"


def cut_metrics(run: Path) -> str:
    content = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(content[: content.rindex("\n", 0, -1) + 40])
    return "metrics.jsonl is complete up to round 2; going back to round 2"


def foreign_files(run: Path) -> str:
    for folder in (run, run / "checkpoints", run / "checkpoints" / "clients"):
        (folder / ".DS_Store").touch()
        (folder / "lost+found").mkdir()
        (folder / "round-abc.safetensors").touch()
    return ""


@pytest.mark.parametrize(
    "damage",
    [damage_checkpoint, remove_memory, damage_metrics, cut_metrics, foreign_files],
)
def test_a_run_continues_from_the_last_complete_state(damage: Any, stopped: Path, whole: fedssl.Run) -> None:
    expected, heard = damage(stopped), Heard()
    experiment.resume(stopped, heard)
    assert (re.search(expected, "\n".join(heard.said)) is not None) if expected else not heard.said
    assert digest(stopped) == digest(whole)
    assert [timeless(line) for line in fedssl.Run(stopped).metrics] == [
        timeless(line) for line in whole.metrics
    ]


def test_a_run_without_a_complete_state_is_not_changed(stopped: Path) -> None:
    flip(file_of(stopped / "checkpoints", 2), -100)
    damage_checkpoint(stopped)
    before = {file: file.read_bytes() for file in stopped.rglob("*") if file.is_file()}
    with pytest.raises(
        RunError, match=r"cannot be continued: the checkpoint of round 3 .* round 2 .*Nothing was changed"
    ):
        experiment.resume(stopped, Listener())
    after = {file: file.read_bytes() for file in stopped.rglob("*") if file.is_file()}
    changed = {file.name for file in before.keys() | after.keys() if before.get(file) != after.get(file)}
    assert changed <= {".lock", "partition.json"}


def test_a_damaged_early_line_of_metrics_is_an_error(stopped: Path) -> None:
    lines = (stopped / "metrics.jsonl").read_text().splitlines(keepends=True)
    (stopped / "metrics.jsonl").write_text(lines[0][:50] + "\n" + "".join(lines[1:]))
    with pytest.raises(RunError, match=r"metrics.jsonl is complete up to round 0"):
        experiment.resume(stopped, Listener())
    with pytest.raises(RunError, match=r"metrics.jsonl, line 1 is damaged: it is not JSON"):
        _ = fedssl.Run(stopped).metrics


def test_an_evaluation_does_not_use_a_damaged_checkpoint(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage_checkpoint(stopped)
    assert cli.main(["eval", str(stopped)]) == 1
    assert "round-000003.safetensors cannot be read" in capsys.readouterr().err


def test_every_flipped_byte_is_detected(after_three: Path, tmp_path: Path) -> None:
    """In a checkpoint, a memory and metrics: it is reported, or it does not change what is read."""
    chance = random.Random(0)
    checkpoint = file_of(after_three / "checkpoints", 3)
    right = load_checkpoint(checkpoint, 3)
    copy = tmp_path / "copy"
    for _ in range(60):
        shutil.copy(checkpoint, copy)
        flip(copy, chance.randrange(copy.stat().st_size if chance.random() < 0.5 else 4096))
        try:
            found = load_checkpoint(copy, 3)
        except RunError:
            continue
        assert all(torch.equal(found.server.model[name], value) for name, value in right.server.model.items())
        assert found.memory_rounds == right.memory_rounds
    metrics = (after_three / "metrics.jsonl").read_bytes()
    directory = RunDir(tmp_path)
    for _ in range(200):
        position = chance.randrange(len(metrics))
        directory.metrics_file.write_bytes(metrics)
        flip(directory.metrics_file, position)
        rounds = directory.whole_rounds()[0]
        touched = metrics[:position].count(b"\n")
        assert (
            rounds <= touched
            or list(directory.lines())[touched][1] == list(RunDir(after_three).lines())[touched][1]
        )


# --- config.toml ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: b"", "is truncated"),
        (lambda text: text[: len(text) // 2], "cut off|Invalid|Expected|Illegal|Unescaped|Unclosed"),
        (lambda text: text.replace(b"rounds = 4", b"rounds = 5"), "is damaged, or was edited"),
        (lambda text: text.decode().encode("utf-16"), "is not UTF-8"),
        (lambda text: text.replace(b"byol", "b\u00ffol".encode("latin-1")), "is not UTF-8"),
        (lambda text: b"a = " + b"[" * 100_000, "nested too deeply"),
        (lambda text: b".".join([b"a"] * 50_000) + b" = 1", "nested too deeply|unknown key"),
        (lambda text: b"rounds = " + b"9" * 5000, "digits"),
        (lambda text: text.replace(b'root = ""', b'root = "a\\u0000b"').rpartition(b"#")[0], "NUL"),
        (lambda text: b"\0" * 10, "Invalid"),
        (lambda text: b"# " + b"x" * (2 << 20), "too large for a config"),
    ],
)
def test_an_invalid_config_file_is_a_clear_error(stopped: Path, change: Any, said: str) -> None:
    file = stopped / "config.toml"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(ConfigError, match=said):
        RunDir.open(stopped).config()


def test_a_config_may_be_edited_on_purpose(stopped: Path) -> None:
    file = stopped / "config.toml"
    lines = file.read_text().replace("rounds = 4", "rounds = 5").splitlines(keepends=True)
    file.write_text("".join(lines[:-1]))
    assert RunDir.open(stopped).config().rounds == 5


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/", "x" * 300, "/proc/self/mem"])
def test_a_config_must_be_a_file(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", path]) == 2
    assert capsys.readouterr().err.startswith("fedssl: ")


@pytest.mark.parametrize("out", ["/proc/fedssl", "x" * 300, "/dev/null/run"])
def test_a_folder_that_cannot_be_made(out: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "rounds=1", "--out", out]) == 1
    assert capsys.readouterr().err.startswith("fedssl: ")


# --- locks and leftovers --------------------------------------------------------------------------


def test_two_processes_do_not_train_the_same_run(stopped: Path) -> None:
    with (
        RunDir(stopped).locked(),
        pytest.raises(RunError, match=f"is in use by process {os.getpid()} on .*: wait"),
    ):
        experiment.resume(stopped, Listener())


def test_the_lock_of_a_dead_process_is_released(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from fedssl.locks import exclusive\n"
        "with exclusive(Path(sys.argv[1]), 'x'): os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "lock")], check=False)
    assert (tmp_path / "lock").read_text()
    with exclusive(tmp_path / "lock", "x"):
        pass


def test_scratch_folders_of_dead_processes_are_removed(tmp_path: Path) -> None:
    dead, foreign = tmp_path / "fedssl-scratch-dead", tmp_path / "fedssl-runs"
    for folder in (dead, foreign):
        folder.mkdir()
    (dead / "lock").touch()
    os.environ["TMPDIR"], before = str(tmp_path), os.environ.get("TMPDIR")
    import tempfile

    tempfile.tempdir = None
    try:
        scratch = Scratch()
        remove_abandoned(tmp_path)
    finally:
        tempfile.tempdir = None
        del os.environ["TMPDIR"]
        if before is not None:
            os.environ["TMPDIR"] = before
    assert {path.name for path in tmp_path.iterdir()} == {"fedssl-runs", scratch.folder.name}
    scratch.close()
    assert not scratch.folder.exists()


def test_half_written_files_of_dead_processes_are_removed(stopped: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    memories = stopped / "checkpoints" / "clients" / "0"
    left = [memories / f".round-000004.safetensors.{gone.pid}.tmp", stopped / f".config.toml.{gone.pid}.tmp"]
    kept = stopped / f".result.json.{os.getpid()}.tmp"
    for file in (*left, kept):
        file.touch()
    with RunDir(stopped).locked():
        assert not any(file.exists() for file in left)
        assert kept.exists()


def test_appending_removes_a_truncated_line(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    for start in ('{"a": 1}\n{"b": ', '{"a": 1}'):
        file.write_text(start)
        append_line(file, '{"c": 2}\n')
        assert list(read_lines(file)) == [{"a": 1}, {"c": 2}]


def test_memories_are_kept_for_every_checkpoint(tmp_path: Path) -> None:
    """A client that takes part rarely keeps the one memory that both checkpoints need."""
    from fedssl.state import ClientMemory, ServerState

    store = MemoryStore(tmp_path / "clients", 0)
    checkpoints = Checkpoints(tmp_path, 2, store)
    known: dict[int, int] = {}
    for number in range(1, 8):
        for client in (0, *([1] if number in (2, 6) else [])):
            store.save(client, number, ClientMemory({"w": torch.full((1,), float(number))}))
            known[client] = number
        checkpoints.save(number, ServerState({"w": torch.zeros(1)}), known)
        checkpoints.wait()
        for kept in checkpoints.rounds():
            store.check(checkpoints.load(kept).memory_rounds)
    assert checkpoints.rounds() == [6, 7]
    files = sorted(str(file.relative_to(store.folder)) for file in store.folder.rglob("*.safetensors"))
    assert files == ["0/round-000006.safetensors", "0/round-000007.safetensors", "1/round-000006.safetensors"]


def test_the_order_of_tensors_is_preserved(tmp_path: Path) -> None:
    from fedssl.state import ServerState

    state = {name: torch.ones(1) for name in ("z", "a", "m")}
    checkpoints = Checkpoints(tmp_path, 2, MemoryStore(tmp_path / "clients", 0))
    checkpoints.save(1, ServerState(state), {})
    checkpoints.wait()
    assert list(checkpoints.load(1).server.model) == ["z", "a", "m"]


def test_tensors_without_a_checksum_are_not_a_checkpoint(tmp_path: Path) -> None:
    save_tensors(tmp_path / "a", {"w": torch.ones(1)}, {}, checked=False)
    load_tensors(tmp_path / "a")
    with pytest.raises(RunError, match="it has no checksum"):
        load_tensors(tmp_path / "a", checked=True)


def lines_of(text: str, file: Path) -> Iterator[str]:
    file.write_text(text)
    return (line for _, line in numbered_lines(file))


def test_only_the_last_line_may_be_truncated(tmp_path: Path) -> None:
    assert list(lines_of('{"a": 1}\n{"b', tmp_path / "x")) == ['{"a": 1}\n']
    (tmp_path / "x").write_text('{"a": 1}\n{"b\n{"c": 3}\n')
    with pytest.raises(RunError, match="line 2 is damaged: it is not JSON"):
        list(read_lines(tmp_path / "x"))
