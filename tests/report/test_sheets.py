"""Comparisons as tables: `fedssl report FOLDER -o table.csv|.tex|.md`."""

import csv

import pytest

from fedssl.cli import main
from fedssl.report.sheet import Sheet, as_latex, as_markdown
from tests.report.handmade import finished


@pytest.fixture
def folder(tmp_path):
    """Two settings with two seeds each: 80 and 82 %, 70 and 71 %; a nested folder, and one without a run."""
    for method, accuracies in (("fedema", (0.80, 0.82)), ("fedavg", (0.70, 0.71))):
        for seed, accuracy in enumerate(accuracies):
            finished(tmp_path / "runs" / method / f"s{seed}", accuracy, seed=seed, method=method)
    (tmp_path / "runs" / "notes").mkdir()
    return tmp_path / "runs"


def test_csv_has_the_numbers(folder, tmp_path, capsys):
    out = tmp_path / "table.csv"
    assert main(["report", str(folder), "-o", str(out)]) == 0
    assert f"wrote {out}" in capsys.readouterr().out
    with open(out, newline="", encoding="utf-8") as file:
        records = list(csv.DictReader(file))
    linear = {
        each["setting"]: each for each in records if each["measure"] == "linear.accuracy" and each["mean"]
    }
    assert float(linear["fedema"]["mean"]) == pytest.approx(0.81)
    assert float(linear["fedema"]["spread"]) == pytest.approx(0.02 / 2**0.5)
    assert linear["fedavg"]["seeds"] == "2"
    (pair,) = [each for each in records if each["measure"] == "linear.accuracy" and each["difference"]]
    # paired: 0.10 and 0.11 in favor of one, whichever is first
    assert abs(float(pair["difference"])) == pytest.approx(0.105)
    assert {pair["setting"], pair["against"]} == {"fedema", "fedavg"}


def test_markdown_and_latex(folder, tmp_path):
    for name in ("table.md", "table.tex"):
        assert main(["report", str(folder), "-o", str(tmp_path / name)]) == 0
    markdown = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "| fedema" in markdown
    assert "81.0 ± 1.4 %" in markdown
    latex = (tmp_path / "table.tex").read_text(encoding="utf-8")
    assert r"81.0 $\pm$ 1.4 \%" in latex
    assert latex.count(r"\toprule") == latex.count(r"\bottomrule") == latex.count(r"\begin{table}")


def test_a_folder_of_runs_is_a_page_too(folder, tmp_path):
    out = tmp_path / "page.html"
    assert main(["report", str(folder), "-o", str(out), "--fast"]) == 0
    assert "2 settings with 2 seeds each" in out.read_text(encoding="utf-8")


def test_special_characters_are_escaped():
    sheet = Sheet("50 % of a_b & c", ["name", "x|y"], [["α_1", "1 − 2"]])
    latex = as_latex([sheet])
    assert r"\caption{50 \% of a\_b \& c}" in latex
    assert r"α\_1 & 1 $-$ 2 \\" in latex
    assert "| x\\|y" in as_markdown([sheet])


def test_a_file_that_is_neither_page_nor_table(tmp_path, folder, capsys):
    from fedssl.errors import ConfigError
    from fedssl.report.sheet import write_sheets

    with pytest.raises(ConfigError, match=r"the file must end in \.csv, \.tex, \.md, \.html"):
        write_sheets([], tmp_path / "table.xlsx")
