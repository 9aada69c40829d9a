"""Single inputs that once hung, took all memory, or ended in a traceback."""

from __future__ import annotations

import io
import os
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest
from numpy.lib import format as npy
from PIL import Image

from fedssl import cli
from fedssl.config import load
from fedssl.data.options import DataConfig
from fedssl.data.sets import load_whole
from fedssl.errors import ConfigError, DataError
from fedssl.rundir import RunDir
from tests.fuzz.targets import limited
from tests.small import arguments, digest, small_run

TMPFS = ("-t", "tmpfs", "-o")
TERABYTES_27 = (27 << 40) // (32 * 32 * 3)


def header(count: int, dtype: str = "|u1") -> bytes:
    """A NumPy header that claims `count` images."""
    stream = io.BytesIO()
    npy.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": (count, 32, 32, 3)})
    return stream.getvalue() + b"\0" * 64


@pytest.mark.parametrize("packed", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_an_npz_that_claims_27_tib_is_refused_before_memory_is_taken(packed: int, tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    with zipfile.ZipFile(file, "w", packed) as archive:
        archive.writestr("x.npy", header(TERABYTES_27))
    with pytest.raises(DataError, match=r"x\.npy: its header claims 29,686,813,94\d,\d+ bytes, but it has"):
        load_whole(DataConfig(name="npz", root=str(file)))


def test_an_array_with_a_false_header_is_left_out(tmp_path: Path) -> None:
    Image.new("RGB", (9, 9)).save(tmp_path / "good.png")
    (tmp_path / "bad.npy").write_bytes(header(TERABYTES_27))
    found = load_whole(DataConfig(name="folder", root=str(tmp_path), channels=3))
    assert len(found) == 1
    assert "bad.npy (its header claims" in found.warnings[-1]


def test_a_pipe_or_a_device_among_images_is_left_out(tmp_path: Path) -> None:
    Image.new("RGB", (9, 9)).save(tmp_path / "good.png")
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "endless.jpg").symlink_to("/dev/zero")
    with limited(10):
        found = load_whole(DataConfig(name="folder", root=str(tmp_path)))
    assert len(found) == 1
    assert "2 files are not images, left out: endless.jpg, pipe.png" in found.warnings


def test_a_pipe_in_a_table_of_images_is_left_out(tmp_path: Path) -> None:
    Image.new("RGB", (9, 9)).save(tmp_path / "good.png")
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "table.csv").write_text("path\ngood.png\npipe.png\n/dev/zero\n")
    with limited(10):
        found = load_whole(DataConfig(name="manifest", root=str(tmp_path / "table.csv")))
    assert len(found) == 1
    assert "pipe.png (not a regular file)" in found.warnings[-1]


@pytest.mark.parametrize(
    "keys",
    [
        {"engine.threads": 10**9},
        {"engine.workers": 10**9},
        {"engine.wave": 2**40},
        {"data.size": 10**6},
        {"participation.overshoot": 1e300},
        {"participation.overshoot": float("inf")},
        {"data.mean": float("nan")},
        {"train.epochs": 1e300},
        {"model.width": 10**7},
        {"model.projector_hidden": 10**9},
        {"objective.name": "mae", "objective.decoder_depth": 10**9},
        {"method.name": "featarc", "method.clusters": 10**9},
        {"seed": 10**30},
        {"rounds": 10**400},
    ],
    ids=lambda keys: list(keys)[-1],
)
def test_absurd_numbers_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        load({}, keys)


def test_layers_that_do_not_fit_into_memory_are_refused(tmp_path: Path) -> None:
    words = arguments(**{"model.width": 8192, "rounds": 1})
    with limited(10):
        assert cli.main(["run", *words, "--out", str(tmp_path / "run")]) == 2


# --- folders ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["resume", "RUN"], ["run", "rounds=1", "--out", "RUN/new"]])
def test_a_folder_that_is_read_only(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if tests run as root, who may write everywhere: `open` and `mkdir` are patched to fail."""
    RunDir.create(tmp_path / "run", load({}, {"rounds": 1}))
    original = os.open

    def readonly(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path).startswith(str(tmp_path)):
            raise OSError(30, "Read-only file system", str(path))
        return original(path, flags, *rest, **more)

    def no_folder(self: Path, *_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system", str(self))

    monkeypatch.setattr(os, "open", readonly)
    monkeypatch.setattr(Path, "mkdir", no_folder)
    assert cli.main([word.replace("RUN", str(tmp_path / "run")) for word in words]) == 1
    said = capsys.readouterr().err
    assert said.startswith("fedssl: cannot")
    assert "Read-only file system" in said


def test_a_full_disk_is_a_clear_error_and_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With increasing space, the disk is full at the config, at a memory, and at a checkpoint."""
    disk, keys = tmp_path / "disk", {"objective": "byol", "method": "fedema", "checkpoint.every": 1}
    disk.mkdir()
    if subprocess.run(["mount", *TMPFS, "size=40k", "none", str(disk)], capture_output=True).returncode:
        pytest.skip("needs to mount a file system")
    try:
        assert cli.main(["run", *arguments(**keys), "--out", str(disk / "run"), "--quiet"]) == 1
        for kilobytes in (60, 120):
            subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", str(disk)], check=True)
            assert cli.main(["resume", str(disk / "run"), "--quiet"]) == 1
        said = capsys.readouterr().err.splitlines()
        assert [line.startswith("fedssl: disk full: cannot write") for line in said] == [True] * 3
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        assert cli.main(["resume", str(disk / "run"), "--quiet"]) == 0
        assert digest(disk / "run") == digest(small_run(tmp_path / "whole", **keys))
    finally:
        subprocess.run(["umount", str(disk)], check=False)
