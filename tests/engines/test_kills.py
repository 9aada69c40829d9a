"""A few of the kills of benchmarks/kills.py, of the main process and of workers at random moments."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def test_killed_runs_end_with_the_same_bits_and_metrics(tmp_path: Path) -> None:
    found = tmp_path / "found.jsonl"
    words = ["--cases", "fedema,ditto+workers", "--kills", "2", "--rounds", "12", "--json", str(found)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "kills.py"), *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in found.read_text().splitlines()]
    assert [line["case"] for line in lines] == ["fedema", "ditto+workers"]
    for line in lines:
        assert line["differences"] == []
        assert sum(line["killed"].values()) > 0
