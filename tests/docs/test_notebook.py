"""The notebook in examples/ runs from the first cell to the last and shows its results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

FILE = ROOT / "examples" / "notebook.ipynb"
SHORTER = {"rounds=10": 'rounds=2, data={"name": "digits", "limit": 200}', "rounds=12": "rounds=3"}


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The cells of code after they have run, with fewer rounds and images."""
    notebook = nbformat.read(FILE, as_version=4)
    for cell in notebook.cells:
        for text, other in SHORTER.items():
            cell.source = cell.source.replace(text, other)
    folder = tmp_path_factory.mktemp("notebook")
    where = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where).execute()
    assert (folder / "runs" / "digits-simclr-fedavg" / "report.html").exists()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def shown(cell: Any, kind: str) -> str:
    """What the cell displays or prints, as `text/plain`, `text/html` or `image/png`."""
    data = [output.get("data", {"text/plain": output.get("text", "")}) for output in cell.outputs]
    return "".join(str(each.get(kind, "")) for each in data)


def test_every_cell_shows_its_output(cells: list[Any]) -> None:
    run, probes, curves, more, compared, vectors, similar, classifier, report = cells
    assert "<svg" in shown(run, "text/html")
    assert "untrained" in shown(probes, "text/plain")
    assert shown(curves, "image/png")
    assert shown(more, "text/plain") == "3"
    assert "digits-simclr-fedema" in shown(compared, "text/plain")
    assert shown(vectors, "text/plain") == "(200, 64)"
    assert shown(similar, "image/png")
    assert shown(classifier, "text/plain").endswith("%'")
    assert "report.html" in shown(report, "text/plain")


def test_the_notebook_contains_no_machine_paths() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert str(Path.home()) not in text
    assert "Traceback" not in text
    assert FILE.stat().st_size < 300_000
    listed = (FILE.parent / "README.md").read_text(encoding="utf-8")
    assert "](notebook.ipynb)" in listed
