import errno

import pytest
import torch

from fedssl.errors import RunError
from fedssl.storage import parse_line, summed, write_atomic
from fedssl.tensorfile import load_tensors, save_tensors


def test_tensors_and_values_survive_a_round_trip(tmp_path):
    weights = torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    state = {"weight": weights, "count": torch.tensor(3), "half": torch.ones(2, dtype=torch.bfloat16)}
    save_tensors(tmp_path / "a.safetensors", state, {"loss": 0.1, "name": "x"})
    loaded, values = load_tensors(tmp_path / "a.safetensors")
    assert values == {"loss": 0.1, "name": "x"}
    assert all(
        torch.equal(loaded[name], state[name]) and loaded[name].dtype == state[name].dtype for name in state
    )


def test_a_failed_write_keeps_the_old_file(tmp_path):
    file = tmp_path / "file"
    file.write_text("old")

    def fail(temporary):
        temporary.write_text("half")
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        write_atomic(file, fail)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_full_disk_is_a_clear_error(tmp_path):
    def full(temporary):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(RunError, match=r"disk full.*resume"):
        write_atomic(tmp_path / "file", full)


def test_a_broken_file_is_a_clear_error(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"rubbish")
    with pytest.raises(RunError, match="cannot be read"):
        load_tensors(tmp_path / "a.safetensors")


def test_every_flipped_bit_of_a_line_is_detected():
    """Nor in its checksum: `"crd": "1f74ad06"` is no line without one."""
    line = summed({"round": 3, "loss": 0.25, "clients": [{"client": 0}]}).rstrip("\n")
    assert parse_line(line) == {"round": 3, "loss": 0.25, "clients": [{"client": 0}]}
    for position in range(len(line)):
        for bit in range(7):
            damaged = line[:position] + chr(ord(line[position]) ^ 1 << bit) + line[position + 1 :]
            with pytest.raises(ValueError, match=r"it is not|checksum"):
                parse_line(damaged)
