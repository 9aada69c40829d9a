"""A few of the kills of benchmarks/kills.py: at random moments, main process and workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.mark.parametrize("case", ["fedema", "ditto+workers"])
def test_killed_runs_end_with_the_same_bits_and_metrics(case: str, tmp_path: Path) -> None:
    found = tmp_path / "found.jsonl"
    words = ["--cases", case, "--kills", "3", "--json", str(found)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "kills.py"), *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = map(json.loads, found.read_text().splitlines())
    assert line["differences"] == []
    assert sum(line["killed"].values()) == 3
