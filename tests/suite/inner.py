"""A separate pytest, with this suite's conftest, on a small test file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start_pytest(folder: Path, code: str, *words: str) -> subprocess.Popen[str]:
    (folder / "test_inner.py").write_text(code)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -q -p tests.conftest -p no:cacheprovider\n")
    with open(folder / "output", "w") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))},
            stdout=output,
            stderr=output,
            text=True,
            # Shells start background jobs with interrupts ignored, and children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )


def output_of(folder: Path) -> str:
    return (folder / "output").read_text()
