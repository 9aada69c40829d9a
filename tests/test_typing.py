"""Projects that use fedssl are type-checked against it: py.typed, and types that say what they mean."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CORRECT = """
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

import fedssl
from fedssl.methods.client import Client
from fedssl.methods.fedavg import FedAvg
from fedssl.methods.training import Training


class Patient(FedAvg):
    patience: float = Field(0.5, ge=0, le=1, description="an option of the method")

    def train(self, client: Client) -> Training:
        return super().train(client)


def accuracy(folder: Path) -> float:
    run: fedssl.Run = fedssl.run({"rounds": 2}, out=folder, quiet=True, method="fedema")
    encoder: nn.Module = run.encoder
    encoder.eval()
    rounds: list[dict[str, Any]] = fedssl.resume(run.path, quiet=True).metrics
    return float(run.result["probe"]["accuracy"]) / len(rounds)


def split(labels: Sequence[int]) -> list[NDArray[np.int64]]:
    return fedssl.data.partition(labels, scheme="dirichlet", clients=10, alpha=0.1, seed=0)


def aggregate(model: dict[str, Tensor]) -> dict[str, Tensor]:
    rule = fedssl.aggregation.build("l-dawa")
    return rule(model, [fedssl.Upload(client=0, state=model, num_samples=10, loss=0.3)])
"""

# Each wrong line carries the code of the error that mypy has to report there.
WRONG = """
import fedssl
from fedssl.methods.client import Client
from fedssl.methods.fedavg import FedAvg

run = fedssl.run(data="digits")
total: int = run.result  # assignment
print(run.result + 1)  # operator
run.encodr  # attr-defined
fedssl.rnu(data="digits")  # attr-defined
fedssl.data.partition(["cat", "dog"], scheme="iid")  # list-item
parts: list[int] = fedssl.data.partition([0, 1], scheme="iid")  # assignment
rule = fedssl.aggregation.build(3)  # arg-type
rule({}, [{"client": 0}])  # list-item
fedssl.Upload(client=0)  # call-arg


class Hasty(FedAvg):
    def train(self, client: Client) -> int:  # override
        return 3
"""


def test_mypy_strict_accepts_correct_use_and_reports_wrong_use(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "correct.py").write_text(CORRECT, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    cache = request.config.rootpath / ".mypy_cache" / "client"  # kept: the next check takes seconds
    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache}"]
    done = subprocess.run(
        [*mypy, "correct.py", "wrong.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    reported = {
        (file, int(line), code)
        for file, line, code in re.findall(r"^(\S+?):(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.M)
    }
    expected = {
        ("wrong.py", number, line.partition("  # ")[2])
        for number, line in enumerate(WRONG.splitlines(), start=1)
        if "  # " in line
    }
    assert reported == expected, done.stdout + done.stderr
