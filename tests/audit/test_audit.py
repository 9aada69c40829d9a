"""`fedssl audit`: the command, its files, the report, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import fedssl
from fedssl.audit.words import sentences
from fedssl.cli import main
from fedssl.config import load
from fedssl.report.html.data import document
from fedssl.report.html.page import page
from tests.small import SMALL


def audit(run: Path, *words: str) -> int:
    return main(["audit", str(run), "--images", "40", "--steps", "2", *words])


def test_the_command_and_the_report(plain: fedssl.Run, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(plain.path, out)
    assert audit(out) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("canary clients", "membership", "gradient inversion"))
    folder = out / "privacy-audit"
    found = json.loads((folder / "audit.json").read_text())
    assert set(found) == {"canaries", "membership", "inversion"}
    assert {file.name for file in folder.glob("*.png")} == {f"{name}.png" for name in found}
    assert folder.stat().st_mode & 0o077 == 0  # pictures show images of clients
    shown = document([out])
    assert [each["words"] for each in shown["runs"][0]["audit"]] == [each["words"] for each in found.values()]
    assert all(each["picture"]["uri"].startswith("data:image/") for each in shown["runs"][0]["audit"])
    assert "Privacy audit" in page(shown)


def test_an_attack_keeps_the_results_of_others(plain: fedssl.Run, out: Path) -> None:
    shutil.copytree(plain.path, out)
    assert audit(out, "--only", "canaries") == audit(out, "--only", "membership") == 0
    assert set(json.loads((out / "privacy-audit/audit.json").read_text())) == {"canaries", "membership"}


def test_a_report_without_an_audit_has_no_section(plain: fedssl.Run) -> None:
    assert document([plain.path])["runs"][0]["audit"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "canary"], "did you mean canaries"),
        (["--images", "3"], "--images 3: at least 40"),
        (["--batch", "0"], "--batch 0: at least 1"),
    ],
)
def test_wrong_options(
    words: list[str], message: str, plain: fedssl.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(plain.path), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_run_that_has_not_finished(
    plain: fedssl.Run, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(plain.path, out)
    (out / "result.json").unlink()
    assert audit(out) == 1
    assert "has not finished: `fedssl resume" in capsys.readouterr().err
    assert main(["audit", str(out / "nowhere")]) == 1
    assert "is not a run" in capsys.readouterr().err


CANARIES = {
    "count": 40,
    "taking_part": 19,
    "lower_bound": 1.5,
    "estimate": 3.0,
    "estimate_low": 2.0,
    "estimate_high": 4.0,
    "largest_bound": 2.1,
    "delta": 1e-5,
}


@pytest.mark.parametrize(
    ("accountant", "keys", "expected"),
    [
        (None, {}, "no differential privacy"),
        (8.0, {"privacy.mode": "client", "privacy.noise": 1.0}, "below it, as it must be"),
        (1.0, {"privacy.mode": "client", "privacy.noise": 1.0}, "above it: the noise is too small"),
    ],
)
def test_sentences_compare_the_bound_with_the_accountant(
    accountant: float | None, keys: dict[str, object], expected: str
) -> None:
    told = sentences("canaries", {**CANARIES, "accountant": accountant}, load(SMALL, keys))
    assert expected in told[-1]
    assert "ε is at least 1.50" in told[1]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, "uploads in clear"),
        ({"privacy.secure": True}, "the server sees sums."),
        ({"privacy.mode": "client", "privacy.noise": 1.0}, "bounded updates without noise"),
        ({"privacy.mode": "client", "privacy.noise": 1.0, "privacy.secure": True}, "sums with noise"),
        ({"privacy.mode": "example", "privacy.noise": 1.0, "objective": "byol"}, "noisy models"),
    ],
)
def test_sentences_describe_what_the_server_sees(keys: dict[str, object], expected: str) -> None:
    observers = [
        {"name": "upload", "similarity": 0.9},
        {"name": "sum", "similarity": 0.2, "clients": 5},
        {"name": "noise", "similarity": 0.1, "noise": 1.0, "clip": 1.0},
    ]
    told = sentences("inversion", {"images": 1, "guess": 0.3, "observers": observers}, load(SMALL, keys))
    assert expected in told[-1]
    assert ["recognizable" in sentence for sentence in told[1:4]] == [True, False, False]
