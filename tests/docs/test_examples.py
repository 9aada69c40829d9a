"""The programs in examples/ run and print what they document."""

from __future__ import annotations

import re
import runpy
import sys

import pytest

from fedssl.methods import METHODS
from tests.docs.pages import ROOT

SMALL = {
    "compare_methods.py": (["--seeds=2", "--rounds=1", "--images=60"], r"fedema +\d+\.\d ± \d+\.\d +\d of 2"),
    "your_own_method.py": (["--rounds=1", "--images=60"], r"private-stem +\d+\.\d % .* numbers uploaded"),
    "early_stop.py": (["--rounds=9", "--images=60", "--patience=1"], r"\n\d of 9 rounds: "),
    "photos_to_search.py": (["--rounds=1", "--images=20"], r"most similar to .*\n( +0\.\d+ .*\n){5}"),
    "few_labels.py": (["--rounds=1", "--labels", "2", "--epochs=5"], r"\n +2( +\d+\.\d %){3}"),
    "export_onnx.py": (["--rounds=1"], r"wrote digits.onnx, [\d,]+ bytes\n"),
}


def test_all_examples_are_tested_and_listed() -> None:
    files = {file.name for file in (ROOT / "examples").glob("*.py")}
    assert files == SMALL.keys()
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert files == set(re.findall(r"\]\((\w+\.py)\)", listed))


@pytest.mark.parametrize("name", SMALL)
def test_an_example_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words, expected = SMALL[name]
    monkeypatch.setattr(sys, "argv", [name, *words])
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS._entries))  # what an example registers goes again
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    said = capfd.readouterr().out
    assert re.search(expected, said), said
    if name == "export_onnx.py":  # printed by the process without fedssl
        assert re.search(r"\d+\.\d% right by 64 pixels\n\d+\.\d% right by \d+ features", said), said
    if name == "your_own_method.py":
        fewer, more = (int(number.replace(",", "")) for number in re.findall(r"([\d,]+) numbers", said)[::-1])
        assert fewer < more  # the first layers stayed
